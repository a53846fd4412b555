"""Texts of single tokens, with a byte-level tokenizer as models have it."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from asyncrl.errors import InputError
from asyncrl.model.token_text import TokenTexts


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
