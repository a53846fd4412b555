"""Stop strings: where a response ends because of what it says.

Servers work on tokens and hold no tokenizer, so the controller decodes what arrives and aborts the request.
A response ends with the first token after which its text holds a stop string, whatever chunks or requests its
tokens came in. Tokens that the server sampled before it heard of the abort are dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

INCOMPLETE = "\ufffd"
"""How text ends whose last character still lacks bytes."""


def no_text(tokens: Sequence[int]) -> str:
    """In place of a tokenizer where nothing is searched."""
    return ""


@dataclass(frozen=True, slots=True)
class StopStrings:
    """The stop strings of a run (rollout.stop) and the tokenizer that finds them."""

    strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] = no_text
    """Text of tokens, special tokens included."""

    def search(self, so_far: Sequence[int] = ()) -> "StopSearch":
        """A search through a response whose first tokens are `so_far`."""
        return StopSearch(self, so_far)

    def first_in(self, text: str) -> int | None:
        """Where in `text` the first stop string begins; None if it holds none."""
        places = [text.find(string) for string in self.strings]
        return min((place for place in places if place >= 0), default=None)


class StopSearch:
    """Looks for a stop string in one response as its tokens arrive. Costs nothing without stop strings.

    Decodes each chunk after the one before it, since the text of a token depends on its neighbors.
    """

    def __init__(self, stop: StopStrings, so_far: Sequence[int] = ()) -> None:
        self.end: int | None = None
        """Response tokens up to and including the one that completed a stop string; None before that."""
        self._stop = stop
        self._num_kept = max(map(len, stop.strings), default=1) - 1
        self._num_before = 0
        """Response tokens before `_window`."""
        self._window: list[int] = []
        """The tokens whose text is decoded again for their neighbors' sake, then those without text yet."""
        self._num_read = 0
        """Tokens of the window whose text has been read."""
        self._tail = ""
        """The end of the text read so far, too short for a stop string."""
        self.feed(so_far)

    def feed(self, tokens: Sequence[int]) -> bool:
        """Whether a stop string ended with one of `tokens`, and none before."""
        if not self._stop.strings or not tokens or self.end is not None:
            return False
        begin = len(self._window)
        self._window.extend(tokens)
        known = len(self._stop.decode(self._window[: self._num_read]))
        text = self._new_text(len(self._window), known)
        if self._stop.first_in(text) is not None:
            counts = range(begin + 1, len(self._window) + 1)
            count = next(n for n in counts if self._stop.first_in(self._new_text(n, known)) is not None)
            self.end = self._num_before + count
            return True
        if len(text) > len(self._tail) and not text.endswith(INCOMPLETE):
            self._tail = text[-self._num_kept :] if self._num_kept else ""
            self._num_before += self._num_read
            del self._window[: self._num_read]
            self._num_read = len(self._window)
        return False

    def _new_text(self, num_tokens: int, known: int) -> str:
        """The text after the first `known` characters of the first tokens of the window, after the tail."""
        return self._tail + self._stop.decode(self._window[:num_tokens])[known:]
