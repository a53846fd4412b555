"""How many tokens a response, or a turn of it, will have, from those that ended lately: what it will hold
of a server's cache.

Short responses end first, so the ones that ended say little of a run that begins. A response that is longer
than all but a few of them is therefore expected to become twice as long as it is.
"""

import itertools
from bisect import bisect_right
from collections import deque

WINDOW = 1024
"""Responses that are remembered."""
REFRESHED_EVERY = 32
"""Responses that may end before they count."""
FEW = 8
"""Longer responses than these are needed for a mean."""
ASSUMED_SHARE = 0.25
"""Assumed share of the limit, where nothing ended yet."""


class ResponseLengths:
    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._sorted: list[int] = []
        self._sums: list[int] = []
        """For each length in `_sorted`, the sum of it and all longer ones."""
        self._num_new = 0

    def add(self, num_tokens: int) -> None:
        """Counts a response that ended, by its length in tokens."""
        self._recent.append(num_tokens)
        self._num_new += 1
        if self._num_new >= REFRESHED_EVERY or len(self._recent) <= REFRESHED_EVERY:
            self._num_new = 0
            self._sorted = sorted(self._recent)
            self._sums = list(itertools.accumulate(reversed(self._sorted)))[::-1]

    def expected(self, num_tokens: int, *, limit_tokens: int) -> int:
        """Tokens at its end of a response that has `num_tokens` and may have `limit_tokens`."""
        first = bisect_right(self._sorted, num_tokens)
        num_longer = len(self._sorted) - first
        if num_longer >= FEW:
            tokens = round(self._sums[first] / num_longer)
        elif num_tokens:
            tokens = 2 * num_tokens
        else:
            tokens = round(ASSUMED_SHARE * limit_tokens)
        return min(max(tokens, num_tokens + 1), limit_tokens)
