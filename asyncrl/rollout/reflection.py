"""Reflection words in responses, as DeepSeek-R1 counts them over the training of R1-Zero (DeepSeek-AI 2025,
Nature 645, supplementary information): a word that stands alone, in any case."""

import re
from collections.abc import Sequence


class ReflectionWords:
    def __init__(self, words: Sequence[str]) -> None:
        """`words` are one at least; inflected forms are words of their own."""
        self.words = tuple(dict.fromkeys(word.casefold() for word in words))
        # The longest first: "wait a minute" is no "wait".
        longest = sorted(self.words, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_alone, longest)), re.IGNORECASE)
        self._places = {word: place for place, word in enumerate(self.words)}

    def count(self, text: str) -> list[int]:
        """How often each word stands in `text`."""
        found = [0] * len(self.words)
        for match in self._pattern.finditer(text):
            place = self._places.get(match[0].casefold())
            if place is not None:
                found[place] += 1
        return found


def _alone(word: str) -> str:
    """Bounded by other characters than letters and digits, where the script has spaces between words."""
    before = r"(?<![^\W_])" if word[0].isascii() and word[0].isalnum() else ""
    after = r"(?![^\W_])" if word[-1].isascii() and word[-1].isalnum() else ""
    return f"{before}{re.escape(word)}{after}"
