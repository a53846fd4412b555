"""Texts of single tokens, with a byte-level tokenizer as models have it."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from asyncrl.errors import InputError
from asyncrl.model.token_text import STRIDE, StopStrings, TokenTexts, token_counts


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    # Byte level: a token per byte, written in the alphabet that shows bytes as characters ("Ġ" is a space).
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def encode(folder: Path, text: str) -> list[int]:
    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


def test_each_token_has_its_own_text_and_special_ones_show(model_folder: Path) -> None:
    texts = TokenTexts(model_folder)(encode(model_folder, "2+2="), encode(model_folder, "4 <|end|>"))
    assert texts == ["4", " ", "<|end|>"]


def test_a_character_of_several_tokens_stands_with_its_last(model_folder: Path) -> None:
    # The euro sign is three bytes.
    assert TokenTexts(model_folder)([], encode(model_folder, "a€b")) == ["a", "", "", "€", "b"]


def test_a_character_that_is_cut_off_shows_as_unknown(model_folder: Path) -> None:
    assert TokenTexts(model_folder)([], encode(model_folder, "a€")[:-1])[-1] == "\ufffd"


def test_joined_texts_are_the_response(model_folder: Path) -> None:
    response = "1 + 2 → 3,\n naïve"
    assert "".join(TokenTexts(model_folder)([], encode(model_folder, response))) == response


def test_without_a_tokenizer_tokens_are_numbers(tmp_path: Path) -> None:
    assert TokenTexts(tmp_path)([], [5, 17]) == ["[5]", "[17]"]


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as a tokenizer"):
        TokenTexts(tmp_path)


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


def by_bytes() -> Tokenizer:
    """A token per byte, one that is a space and half a character, and one that is no text (id 258)."""
    vocabulary = {letter: byte for byte, letter in LETTERS.items()}
    vocabulary[LETTERS[0x20] + LETTERS[0xC3]] = 256
    vocabulary["?\n\n".replace("\n", LETTERS[0x0A])] = 257
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


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
