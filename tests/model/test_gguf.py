"""A GGUF file becomes the Hugging Face folder that it was made from."""

import json
from pathlib import Path

import numpy as np
import pytest
from fakes.gguf_files import TEMPLATE, TOKENS, write_gguf
from fakes.models import write_model
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from asyncrl.errors import InputError
from asyncrl.model import gguf
from asyncrl.model.folder import check_model_folder
from asyncrl.model.gguf import convert_gguf, gguf_key
from asyncrl.model.tokenizer import TextCodec


def made(tmp_path: Path, family: str, *, is_tied: bool = True, **how: object) -> tuple[Path, Path]:
    """(the original folder, the GGUF file)"""
    folder = write_model(tmp_path / "original", family, tie_word_embeddings=is_tied, vocab_size=len(TOKENS))
    return folder, write_gguf(tmp_path / "model.gguf", folder, check_model_folder(folder), **how)


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_every_weight_and_size_is_the_original(family: str, is_tied: bool, tmp_path: Path):
    original, file = made(tmp_path, family, is_tied=is_tied)
    calls: list[tuple[int, int]] = []
    convert_gguf(file, tmp_path / "made", lambda done, total: calls.append((done, total)))
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "made", original))
    assert ours.keys() == theirs.keys() and calls[-1] == (len(theirs), len(theirs))
    for name, weight in theirs.items():
        np.testing.assert_array_equal(ours[name], weight, err_msg=name)
    assert check_model_folder(tmp_path / "made") == check_model_folder(original)


def test_quantised_tensors_are_dequantised(tmp_path: Path):
    original, file = made(tmp_path, "Qwen2", quantised="ffn_up.weight")
    convert_gguf(file, tmp_path / "made")
    name = "model.layers.0.mlp.up_proj.weight"
    ours, theirs = (load_file(folder / "model.safetensors")[name] for folder in (tmp_path / "made", original))
    # Half a step of rounding, and what storing the step in float16 adds at 127 of them.
    step = np.abs(theirs).reshape(-1, 32).max(axis=1, keepdims=True) / 127
    error = np.abs((ours - theirs).reshape(-1, 32))
    assert 0 < error.max() and (error <= 0.6 * step).all()


def test_weights_are_cut_into_shards_with_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    original, file = made(tmp_path, "Llama")
    monkeypatch.setattr(gguf, "SHARD_BYTES", 20_000)
    convert_gguf(file, tmp_path / "made")
    index = json.loads((tmp_path / "made" / "model.safetensors.index.json").read_text())["weight_map"]
    files = sorted(file.name for file in (tmp_path / "made").glob("*.safetensors"))
    assert len(files) > 1 and sorted(set(index.values())) == files
    assert all(name in load_file(tmp_path / "made" / place) for name, place in index.items())
    assert check_model_folder(tmp_path / "made") == check_model_folder(original)


def test_text_chat_template_and_end_token_are_those_of_the_file(tmp_path: Path):
    _, file = made(tmp_path, "Llama")
    convert_gguf(file, tmp_path / "made")
    codec = TextCodec(tmp_path / "made")
    assert codec.stop_token_ids == (TOKENS.index("<|end|>"),)
    text = "x ab ab\n é<|user|>"
    tokens = codec.encode(text)
    assert codec.decode(tokens) == text and TOKENS.index("Ġab") in tokens
    assert tokens[-1] == TOKENS.index("<|user|>")
    assert codec.render_prompt([{"role": "user", "content": "hi"}])[0] == "<|user|>hi"
    assert json.loads((tmp_path / "made" / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "a12", ["a", "1", "2"]),
        ("smollm", "a  2", ["a", "ĠĠ", "2"]),
        ("qwen2", "a12", ["a", "1", "2"]),
        ("llama-bpe", "a1234", ["a", "123", "4"]),
        ("gpt-2", "a12", ["a", "12"]),
    ],
)
def test_digits_are_split_as_the_named_pre_tokenizer_does(
    pre: str, text: str, pieces: list[str], tmp_path: Path
):
    _, file = made(tmp_path, "Llama", pre=pre)
    convert_gguf(file, tmp_path / "made")
    tokenizer = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(tmp_path: Path):
    refused = {
        "tokenizer of kind 'gpt2' with pre-tokenizer 'deepseek'": made(
            tmp_path / "1", "Llama", pre="deepseek"
        ),
        "architecture 'other'": made(tmp_path / "2", "Llama", kind="other"),
        "scales its rotary positions": made(tmp_path / "3", "Llama", llama__rope__scaling__factor=8.0),
    }
    for number, (message, (_, file)) in enumerate(refused.items()):
        with pytest.raises(InputError, match=message):
            convert_gguf(file, tmp_path / f"made{number}")
    _, file = made(tmp_path / "4", "Llama")
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"model\.gguf"):
        convert_gguf(file, tmp_path / "made4")
    assert not list(tmp_path.glob("made*"))


def test_files_that_differ_have_different_keys(tmp_path: Path):
    _, file = made(tmp_path, "Llama")
    key = gguf_key(file)
    assert key == gguf_key(file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert gguf_key(file) != key
