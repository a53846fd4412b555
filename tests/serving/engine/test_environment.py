"""What a server is told as it starts, where the device and the recipe decide."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from asyncrl.recipe import Model, Serving
from asyncrl.serving.engine.environment import (
    cache_environment,
    engine_arguments,
    engine_environment,
    group_environment,
    releases_graphs,
)


def arguments(*, has_gpu: bool, dtype: Any, float32_logits: bool = False, **serving: Any) -> list[str]:
    return engine_arguments(
        Serving(**serving),
        Model(path="m", dtype=dtype, float32_logits=float32_logits),
        has_gpu=has_gpu,
        port=1,
        model_folder=Path("m"),
        stream_interval=8,
        seed=0,
        can_sleep=True,
    )


def test_a_server_of_a_run_with_routing_replay_says_which_experts_tokens_took() -> None:
    options = {"has_gpu": True, "port": 1, "model_folder": Path("m"), "stream_interval": 8, "seed": 0}
    plain, routed = (
        engine_arguments(Serving(), Model(path="m"), **options, returns_routes=is_on)
        for is_on in (False, True)
    )
    assert set(routed) - set(plain) == {"--enable-return-routed-experts"}


@pytest.mark.parametrize(
    ("has_gpu", "dtype", "backend"),
    [
        (False, "float32", "asyncrl_cpu"),
        (True, "float32", "triton"),
        (True, "bfloat16", None),
        (True, "float16", None),
    ],
)
def test_attention_is_left_to_sglang_where_its_choice_can_compute_the_type(
    has_gpu: bool, dtype: str, backend: str | None
) -> None:
    found = arguments(has_gpu=has_gpu, dtype=dtype)
    given = found[found.index("--attention-backend") + 1] if "--attention-backend" in found else None
    assert given == backend
    assert ("--enable-memory-saver" in found) == has_gpu


@pytest.mark.parametrize(
    ("has_gpu", "at_once", "graphed"), [(True, 96, "96"), (True, 512, None), (False, 96, None)]
)
def test_all_that_a_gpu_decodes_at_once_has_a_graph_however_small_the_gpu(
    has_gpu: bool, at_once: int, graphed: str | None
) -> None:
    found = arguments(has_gpu=has_gpu, dtype="bfloat16", max_running_requests=at_once)
    name = "--cuda-graph-max-bs-decode"
    assert (found[found.index(name) + 1] if name in found else None) == graphed


def test_the_output_layer_of_a_16_bit_model_computes_in_float32_where_the_recipe_says_so() -> None:
    def given(dtype: str, *, float32_logits: bool) -> bool:
        found = arguments(has_gpu=True, dtype=dtype, float32_logits=float32_logits)
        return "--enable-fp32-lm-head" in found

    assert given("bfloat16", float32_logits=True) and given("float16", float32_logits=True)
    assert not given("bfloat16", float32_logits=False) and not given("float32", float32_logits=True)


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({"quantization": "fp8"}, ["--quantization", "fp8", "--load-format", "flash_rl"]),
        ({"kv_cache_dtype": "fp8_e4m3"}, ["--kv-cache-dtype", "fp8_e4m3"]),
        ({"expert_parallel_size": 4}, ["--expert-parallel-size", "4"]),
        ({"attention_data_parallel_size": 2}, ["--attention-data-parallel-size", "2"]),
    ],
)
def test_how_a_server_divides_and_rounds_is_on_its_command_line(
    keys: dict[str, Any], options: list[str]
) -> None:
    plain = arguments(has_gpu=True, dtype="bfloat16", tensor_parallel_size=4)
    found = arguments(has_gpu=True, dtype="bfloat16", tensor_parallel_size=4, **keys)
    place = found.index(options[0])
    assert found[place : place + len(options)] == options
    assert found[:place] + found[place + len(options) :] == plain


def test_a_recipes_own_arguments_come_last() -> None:
    own = ["--attention-backend", "fa3"]
    assert arguments(has_gpu=True, dtype="float32", extra_arguments=own)[-2:] == own


def test_both_sides_of_a_communicator_have_the_settings_that_sglang_takes() -> None:
    assert group_environment({}) == {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
    # SGLang leaves what somebody has set, and so do we.
    assert group_environment({"NCCL_CUMEM_ENABLE": "1"})["NCCL_CUMEM_ENABLE"] == "1"


@pytest.mark.parametrize(
    ("has_gpu", "can_sleep", "extra", "expected"),
    [
        (True, True, [], True),
        (True, False, [], False),
        (False, True, [], False),
        # The backends of the recipe may be ones whose graphs cannot be released.
        (True, True, ["--cuda-graph-backend-prefill=breakable"], False),
        (True, True, ["--cuda-graph-config", '{"decode": {"backend": "full"}}'], False),
    ],
)
def test_graphs_of_a_server_that_sleeps_on_a_gpu_are_released_unless_the_recipe_chose_their_backends(
    has_gpu: bool, can_sleep: bool, extra: list[str], expected: bool
) -> None:
    serving = Serving(extra_arguments=extra)
    assert releases_graphs(serving, has_gpu=has_gpu, can_sleep=can_sleep) is expected
    environment = engine_environment(threads=1, has_gpu=has_gpu, releases_graphs=expected)
    assert ("SGLANG_MEMORY_SAVER_CUDA_GRAPH" in environment) is expected
    found = engine_arguments(
        serving,
        Model(path="m"),
        has_gpu=has_gpu,
        port=1,
        model_folder=Path("m"),
        stream_interval=8,
        seed=0,
        can_sleep=can_sleep,
    )
    # What SGLang captures for prefill by default cannot be released, and it does not start with both.
    ours = found[: len(found) - len(extra)]
    given = ours[ours.index("--cuda-graph-backend-prefill") + 1] if has_gpu and expected else None
    assert given == ("disabled" if expected else None)


def test_sglang_knows_the_tags_and_the_switch_that_release_graphs() -> None:
    """Read from its sources: without a GPU it releases nothing."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations is not None
    sources = Path(spec.submodule_search_locations[0]) / "srt"
    assert 'GPU_MEMORY_TYPE_CUDA_GRAPH = "cuda_graph"' in (sources / "constants.py").read_text()
    backends = sources / "model_executor" / "runner_backend"
    full, breakable = (
        (backends / f"{name}_cuda_graph_backend.py").read_text() for name in ("full", "breakable")
    )
    assert "SGLANG_MEMORY_SAVER_CUDA_GRAPH" in full and "tag=GPU_MEMORY_TYPE_CUDA_GRAPH" in full
    assert "not compatible with memory saver mode" in breakable


def test_a_server_gets_a_cache_of_its_own_where_the_home_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SGLANG_CACHE_DIR", raising=False)
    (tmp_path / "full").write_text("a file where the home would be")
    monkeypatch.setenv("HOME", str(tmp_path / "full"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = Path(cache_environment.__wrapped__()["SGLANG_CACHE_DIR"])
    assert folder.is_dir() and folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_environment.__wrapped__() == {}
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("HOME", str(tmp_path / "full"))
    assert cache_environment.__wrapped__() == {}
