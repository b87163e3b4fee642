"""Counts words."""


def count(text):
    """How often each word occurs, without regard to case."""
    counts = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts
