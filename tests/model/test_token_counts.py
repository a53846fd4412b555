"""Places in a text, and the tokens that have written it up to there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from asyncrl.model.token_counts import STRIDE, token_counts

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTE_LEVEL = Tokenizer(
    models.BPE({piece: i for i, piece in enumerate([*BYTES, "in", "ing", "Ġt", "he", "Ġthe"])}, [])
)
BYTE_LEVEL.decoder = decoders.ByteLevel()
WORDS = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "c": 2, "▁": 3}, unk_token="c"))
WORDS.decoder = decoders.Metaspace()
"""Writes the space before a word, but for that of the first."""


PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
LETTERS = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(OTHERS)}
"""Byte -> how the byte-level alphabet writes it."""


def byte_tokens(text: str | bytes) -> list[int]:
    """One token for each byte."""
    content = text.encode() if isinstance(text, str) else text
    return [BYTE_LEVEL.token_to_id(LETTERS[byte]) for byte in content]


def decode_bytes(tokens: list[int]) -> str:
    return BYTE_LEVEL.decode(tokens, skip_special_tokens=False)


def decode_words(tokens: list[int]) -> str:
    return WORDS.decode(tokens, skip_special_tokens=False)


def fewest(decode, tokens: list[int], end: int) -> int:
    """By trying each prefix from the longest on."""
    text = decode(tokens)
    count = len(tokens)
    while count > 1 and decode(tokens[: count - 1])[:end] == text[:end]:
        count -= 1
    return count


def test_a_character_of_several_tokens_is_there_with_the_last_of_them() -> None:
    tokens = byte_tokens("a€b")
    assert len(tokens) == 5
    assert token_counts(decode_bytes, tokens, [1, 2, 3]) == {1: 1, 2: 4, 3: 5}


def test_a_token_of_several_characters_is_one_place_for_each() -> None:
    the = BYTE_LEVEL.token_to_id("Ġthe")
    assert token_counts(decode_bytes, [the, the], range(1, 9)) == {i: 1 + (i > 4) for i in range(1, 9)}


def test_a_place_behind_the_text_has_all_tokens() -> None:
    assert token_counts(decode_bytes, byte_tokens("ab"), [99]) == {99: 2}


@given(st.text(max_size=3 * STRIDE), st.integers(0, 5))
def test_the_tokens_found_are_the_fewest_that_have_the_text(text: str, shift: int) -> None:
    tokens = byte_tokens("x" * shift + text + "€€")
    ends = range(1, len(decode_bytes(tokens)) + 1)
    found = token_counts(decode_bytes, tokens, ends)
    for end in ends:
        assert found[end] == fewest(decode_bytes, tokens, end), (end, tokens)


@given(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=3 * STRIDE))
def test_a_decoder_that_treats_the_first_word_otherwise_is_followed(tokens: list[int]) -> None:
    ends = range(1, len(decode_words(tokens)) + 1)
    found = token_counts(decode_words, tokens, ends)
    assert found == {end: fewest(decode_words, tokens, end) for end in ends}


@given(st.binary(min_size=1, max_size=3 * STRIDE), st.data())
def test_bytes_that_are_no_text_have_a_place_too(content: bytes, data: st.DataObject) -> None:
    tokens = byte_tokens(content)
    end = data.draw(st.integers(1, len(decode_bytes(tokens))))
    count = token_counts(decode_bytes, tokens, [end])[end]
    assert 1 <= count <= len(tokens)


def test_a_decoder_that_looks_far_around_is_asked_for_the_whole_text() -> None:
    def backwards(tokens: list[int]) -> str:
        return "".join(map(str, reversed(tokens)))

    tokens = [1] * 50 + [2] * 50
    # All tokens begin with 2, of which the first 51 tokens have one.
    assert token_counts(backwards, tokens, [1]) == {1: 51}


@pytest.mark.parametrize("size", [STRIDE, STRIDE + 1, 20 * STRIDE])
def test_a_long_text_is_decoded_in_parts(size: int) -> None:
    read = 0

    def counted(tokens: list[int]) -> str:
        nonlocal read
        read += len(tokens)
        return decode_bytes(tokens)

    token_counts(counted, byte_tokens("a" * size), range(1, size, 7))
    # The whole text once, each block with the one before it, and few parts of blocks per place.
    assert read < 4 * size + (size // 7 + 1) * 9 * 2 * STRIDE
