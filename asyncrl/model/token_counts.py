"""From places in a text to its tokens: how many tokens have written the text up to there."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from asyncrl.model.stop import INCOMPLETE

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
