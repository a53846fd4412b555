"""The text of tokens as they arrive: stop strings, how many tokens have written a text, and the text of each.

Servers work on tokens and hold no tokenizer, so the controller decodes what arrives and aborts the request. A
response ends with the first token after which its text holds a stop string, whatever chunks or requests its
tokens came in. Tokens that the server sampled before it heard of the abort are dropped.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from asyncrl.errors import InputError

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


# Enough tokens before the first one to tell whether it begins with a space, and to finish a character.
CONTEXT_TOKENS = 6


class TokenTexts:
    """Decodes with the tokenizer of a model folder; without one, tokens are shown as numbers."""

    def __init__(self, model_folder: Path) -> None:
        path = model_folder / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else None
        except Exception as error:  # the library raises bare Exception for a file that it cannot read
            raise InputError(f"{path} cannot be read as a tokenizer: {error}") from error

    def __call__(self, prompt: Sequence[int], response: Sequence[int]) -> list[str]:
        """One text per response token."""
        if self._tokenizer is None:
            return [f"[{token}]" for token in response]
        before = list(prompt[-CONTEXT_TOKENS:])
        ids = before + list(response)
        texts = []
        # Decode from `start` with and without the newest token; the difference is its text. Decoding all from
        # the beginning each time would be quadratic; decoding one token alone loses its leading space.
        start, shown = 0, len(before)
        for end in range(len(before) + 1, len(ids) + 1):
            known, longer = self._decode(ids[start:shown]), self._decode(ids[start:end])
            is_last = end == len(ids)
            if len(longer) > len(known) and (is_last or not longer.endswith(INCOMPLETE)):
                texts.append(longer[len(known) :])
                start, shown = shown, end
            else:
                texts.append("")
        return texts

    def _decode(self, ids: list[int]) -> str:
        assert self._tokenizer is not None
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


STRIDE = 32
"""Tokens of a block, and the most whose text is decoded again for the sake of what follows them."""
_MOST_BYTES = 8
"""A character has 4 bytes at most, and so do few tokens without a whole one."""

Decode = Callable[[Sequence[int]], str]
"""All text of tokens, special ones included."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Tokens from `first`, whose text begins at `character` and is read after those from `context`."""

    first: int
    character: int
    context: int


def token_counts(decode: Decode, tokens: Sequence[int], ends: Iterable[int]) -> dict[int, int]:
    """For each of `ends`, places above 0 in the text of `tokens`: the fewest first tokens that have the text
    before it. A place behind the text has all of them.

    A token that only begins a character does not complete it: "€" may be three tokens, and is there with the
    third. Where bytes are no UTF-8, several tokens may share one U+FFFD, and one of them is found.
    """
    text = decode(tokens)
    blocks = _blocks(decode, tokens, text)
    characters = [block.character for block in blocks]
    found = {}
    for end in set(ends):
        place = bisect_left(characters, end) - 1
        last = blocks[place + 1].first if place + 1 < len(blocks) else len(tokens)
        found[end] = _count(decode, tokens, text, blocks[place], last, end)
    return found


def _count(decode: Decode, tokens: Sequence[int], text: str, block: _Block, last: int, end: int) -> int:
    known = len(decode(tokens[block.context : block.first]))
    wanted = text[block.character : end]

    def has(count: int) -> bool:
        return decode(tokens[block.context : count])[known:].startswith(wanted)

    counts = range(block.first + 1, last)
    return block.first + 1 + bisect_left(counts, True, key=has)


def _blocks(decode: Decode, tokens: Sequence[int], text: str) -> list[_Block]:
    """Blocks whose texts, each read after the block before it, are the whole text; one where they are not,
    as of a tokenizer whose decoder looks further around."""
    blocks = [_Block(0, 0, 0)]
    while True:
        block = blocks[-1]
        known = decode(tokens[block.context : block.first])
        end = block.first + STRIDE
        piece = decode(tokens[block.context : end])
        while piece.endswith(INCOMPLETE) and block.first + STRIDE + _MOST_BYTES > end:
            end += 1
            piece = decode(tokens[block.context : end])
        character = block.character + len(piece) - len(known)
        is_same = piece.startswith(known) and piece[len(known) :] == text[block.character : character]
        if not is_same or (end >= len(tokens) and character != len(text)):
            return blocks[:1]
        if end >= len(tokens):
            return blocks
        blocks.append(_Block(end, character, block.first))
