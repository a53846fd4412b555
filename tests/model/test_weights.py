"""Weights that are missing, unfinished, pointers or not finite are found before anything starts."""

import json
from pathlib import Path

import pytest
import torch
from fakes.models import SIZES
from safetensors.torch import load_file, save_file

from asyncrl.errors import InputError
from asyncrl.model import weights
from asyncrl.model.weights import read_weights, weight_files


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    import transformers

    config = transformers.Qwen3Config(**SIZES, head_dim=16)
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path


def change(folder: Path, name: str, value: float, dtype: torch.dtype) -> None:
    """Writes `value` into the middle of a tensor, all of them stored as `dtype`."""
    file = folder / "model.safetensors"
    tensors = {key: tensor.to(dtype) for key, tensor in load_file(file).items()}
    tensors[name].view(-1)[tensors[name].numel() // 2] = value
    save_file(tensors, file)


def test_names_and_shapes_are_those_that_safetensors_reads(folder: Path) -> None:
    read = load_file(folder / "model.safetensors")
    assert read_weights(folder) == {name: tuple(tensor.shape) for name, tensor in read.items()}


def test_a_shard_that_the_index_names_and_that_is_missing_is_named(sharded: Path) -> None:
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(InputError, match=f"1 are missing, first {gone.name}"):
        read_weights(sharded)


def test_files_that_the_index_does_not_name_are_no_part_of_the_model(sharded: Path) -> None:
    before = read_weights(sharded)
    save_file({"surplus": torch.ones(2)}, sharded / "consolidated.safetensors")
    assert read_weights(sharded) == before


def test_a_single_file_beside_an_index_of_others_is_ambiguous(sharded: Path) -> None:
    save_file({"surplus": torch.ones(2)}, sharded / "model.safetensors")
    with pytest.raises(InputError, match=r"transformers would load model\.safetensors, SGLang the others"):
        weight_files(sharded)


@pytest.mark.parametrize(
    "text", ["{", "[]", json.dumps({"weight_map": ["a"]}), json.dumps({"weight_map": {"a": 1}})]
)
def test_a_broken_index_is_named(sharded: Path, text: str) -> None:
    (sharded / weights.INDEX).write_text(text)
    with pytest.raises(InputError, match="is not an index of safetensors files"):
        weight_files(sharded)


def test_a_pointer_of_git_lfs_says_how_to_get_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"
    )
    with pytest.raises(InputError, match="git lfs pull"):
        read_weights(folder)


def test_an_unfinished_download_is_named(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors.incomplete").write_bytes(b"half")
    with pytest.raises(InputError, match="unfinished download"):
        read_weights(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_named_with_their_tensor(
    folder: Path, dtype: torch.dtype, value: float
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    change(folder, name, value, dtype)
    with pytest.raises(InputError, match=f"tensor {name} holds numbers that are not finite"):
        read_weights(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_and_smallest_finite_numbers_pass(folder: Path, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    for value in (limits.max, limits.min, limits.tiny, -0.0):
        change(folder, "model.norm.weight", value, dtype)
        read_weights(folder)


def test_of_a_large_model_the_ends_of_each_tensor_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "WHOLE_BYTES", 0)
    monkeypatch.setattr(weights, "SAMPLE_BYTES", 64)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][-1, -1] = float("nan")
    save_file(tensors, file)
    with pytest.raises(InputError, match=r"tensor model\.embed_tokens\.weight"):
        read_weights(folder)
