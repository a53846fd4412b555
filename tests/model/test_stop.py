"""A response ends with the first token after which its text holds a stop string, wherever chunks and requests
were cut."""

import random
from collections.abc import Callable, Sequence

import pytest
from tokenizers import Tokenizer, decoders, models

from asyncrl.model.stop import StopStrings


def by_bytes() -> Tokenizer:
    """A token per byte, one that is a space and half a character, and one that is no text (id 258)."""
    alphabet = _byte_alphabet()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    vocabulary[alphabet[0x20] + alphabet[0xC3]] = 256
    vocabulary["?\n\n".replace("\n", alphabet[0x0A])] = 257
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_alphabet() -> dict[int, str]:
    """Byte -> the character that stands for it in a byte-level vocabulary (GPT-2)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def by_pieces() -> Tokenizer:
    """Pieces that open a word with a space, which the first piece of a text loses."""
    pieces = ["\u2581a", "\u2581b", "a", "b", "\u2581", ":", "\u00e9", "\u2581ab"]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="a"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def decoder_of(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    return lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=False)


def by_definition(
    decode: Callable[[Sequence[int]], str], strings: Sequence[str], tokens: list[int]
) -> int | None:
    """Tokens up to and including the first after which the whole text holds a stop string."""
    texts = (decode(tokens[: n + 1]) for n in range(len(tokens)))
    return next((n + 1 for n, text in enumerate(texts) if any(s in text for s in strings)), None)


def searched(stop: StopStrings, tokens: list[int], chance: random.Random) -> int | None:
    """The same by a search that gets chunks of any length, and is begun again with what came at any point."""
    search, position = stop.search(), 0
    while position < len(tokens) and search.end is None:
        chunk = tokens[position : position + chance.randrange(6)]
        is_found = search.feed(chunk)
        assert is_found == (search.end is not None)
        position += len(chunk)
        if chance.random() < 0.3 and search.end is None:
            search = stop.search(tokens[:position])
    return search.end


@pytest.mark.parametrize(
    ("tokenizer", "ids", "strings"),
    [
        (
            by_bytes(),
            [*b"ab", 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 256, 258, 0xFF],
            ("a\u00e9", "b ", "\u20ac\u20ac"),
        ),
        (by_bytes(), [*b"Q:\n", 257, 256, 0xA9, 258], ("\n\nQ", "?\n\n:", "Q \u00e9")),
        (by_pieces(), list(range(8)), ("a b:", " ab", "\u00e9\u00e9\u00e9")),
        (by_pieces(), list(range(8)), (" ", "bab", "::")),
    ],
)
def test_chunks_and_resumes_of_any_length_find_the_token_that_the_definition_names(
    tokenizer: Tokenizer, ids: list[int], strings: tuple[str, ...]
) -> None:
    stop = StopStrings(strings, decoder_of(tokenizer))
    found = []
    for seed in range(400):
        chance = random.Random(seed)
        tokens = chance.choices(ids, k=chance.randrange(1, 60))
        expected = by_definition(stop.decode, strings, tokens)
        assert searched(stop, tokens, chance) == expected, (seed, tokens)
        found.append(expected)
    assert found.count(None) < 390 and len(set(found)) > 5


def test_a_search_decodes_about_two_chunks_at_a_time_however_long_the_response() -> None:
    lengths = []

    def decode(tokens: Sequence[int]) -> str:
        lengths.append(len(tokens))
        return "".join(map(chr, tokens))

    search = StopStrings(("zz",), decode).search()
    for _ in range(100):
        assert not search.feed([97] * 16)
    assert max(lengths) == 32
    assert search.feed([122, 122]) and search.end == 1602


def test_without_stop_strings_nothing_is_decoded() -> None:
    def refuse(tokens: Sequence[int]) -> str:
        raise AssertionError("decoded")

    search = StopStrings((), refuse).search([1, 2])
    assert not search.feed([3]) and search.end is None
