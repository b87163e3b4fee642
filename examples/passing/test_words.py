import unittest

from words import count


class CountTest(unittest.TestCase):
    def test_words_are_counted_without_regard_to_case(self):
        self.assertEqual(count("To be or not to be"), {"to": 2, "be": 2, "or": 1, "not": 1})

    def test_an_empty_text_has_no_words(self):
        self.assertEqual(count(""), {})


if __name__ == "__main__":
    unittest.main()
