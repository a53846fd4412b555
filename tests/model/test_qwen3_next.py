"""Qwen3-Next: the published config.json as it is read; what servers would read otherwise is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe
from families.known import TINY

from asyncrl.errors import InputError
from asyncrl.model.flops import matrix_weights
from asyncrl.model.folder import read_shape
from asyncrl.model.layout import check_layout
from asyncrl.model.memory import server_memory
from asyncrl.model.shape import DeltaNet, ModelShape
from asyncrl.model.weights import num_parameters

PUBLISHED, NUM_PARAMETERS = TINY["Qwen3NextForCausalLM"].published["Qwen/Qwen3-Next-80B-A3B-Instruct"]


def read(folder: Path, **settings: Any) -> ModelShape:
    config = {key: value for key, value in {**PUBLISHED, **settings}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return read_shape(folder)


def test_the_published_model_has_80_billion_parameters_of_which_a_token_meets_3(tmp_path: Path) -> None:
    shape = read(tmp_path)
    assert num_parameters(shape) == NUM_PARAMETERS
    assert 3.0e9 < matrix_weights(shape) < 3.7e9
    assert shape.delta_net == DeltaNet(16, 32, 128, 128, 4)
    assert shape.attention_layers() == 12 and 3 not in shape.delta_layers


@pytest.mark.parametrize("interval", [2, 4])
def test_a_config_of_transformers_5_is_read_as_the_published_one(interval: int, tmp_path: Path) -> None:
    kinds = ["full_attention" if layer % interval == 0 else "linear_attention" for layer in range(1, 49)]
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    missing = {"full_attention_interval": ..., "rope_theta": ..., "rope_scaling": ...}
    saved = read(tmp_path, **missing, layer_types=kinds, rope_parameters=rope)
    assert saved == read(tmp_path, full_attention_interval=interval)


def test_only_layers_with_attention_have_keys_and_values(tmp_path: Path) -> None:
    shape, recipe = read(tmp_path), make_recipe(tmp_path, serving={"max_total_tokens": 1000})
    memory = server_memory(shape, recipe)
    assert memory["kv_cache"] == 1000 * 12 * 2 * 2 * 256 * 4
    state = 32 * 128 * 128 + 3 * (2 * 2048 + 4096)
    assert memory["states"] == 4 * recipe.serving.max_running_requests * 36 * state * 4
    assert server_memory(shape, recipe, on_gpu=True)["states"] == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"layer_types": ["linear_attention"] * 47 + ["full_attention"]}, "full_attention_interval 4"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "set rope_theta"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"linear_num_key_heads": 0}, "linear_num_key_heads is 0"),
    ],
)
def test_what_servers_would_compute_otherwise_is_refused(
    tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, **settings)


@pytest.mark.parametrize(
    ("parallel", "sentence"),
    [
        ({"context": 2}, "trainer.parallel.context is 2, but Qwen3NextForCausalLM has layers of linear"),
        ({"tensor": 4, "sequence_parallel": True}, "2 key-value heads"),
    ],
)
def test_layouts_that_cannot_be_are_refused_by_their_key(
    tmp_path: Path, parallel: dict[str, Any], sentence: str
) -> None:
    shape = read(tmp_path)
    recipe = make_recipe(tmp_path, trainer={"num_processes": 4, "parallel": parallel})
    with pytest.raises(InputError, match=sentence):
        check_layout(recipe, shape)


def test_value_heads_that_key_heads_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="linear_num_value_heads is 24"):
        read(tmp_path, linear_num_value_heads=24)
