"""One test, which fails on purpose: it shows what a failed run looks like."""

from calc import add


def test_add():
    assert add(2, 3) == 5
