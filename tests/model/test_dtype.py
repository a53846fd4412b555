"""What `model.dtype: auto` stands for."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import seven_b_shape, tiny_shape

from asyncrl.model import dtype
from asyncrl.model.dtype import disk_notes, find_dtype, kept_version_bytes, version_lines, with_dtype
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import num_parameters
from asyncrl.system import machine

AUTO = make_recipe(Path("model"), model={"dtype": "auto"})


def shape_of(millions: int) -> ModelShape:
    """A model whose `millions` of parameters are nearly all in its embedding."""
    tiny = tiny_shape()
    return dataclasses.replace(tiny, vocab_size=millions * 10**6 // tiny.hidden_size, is_tied=True)


@pytest.mark.parametrize(
    ("millions", "has_gpu", "flag", "expected"),
    [
        (135, False, "avx512_bf16", "bfloat16 (this CPU has avx512_bf16)"),
        (135, False, "amx_bf16", "bfloat16 (this CPU has amx_bf16)"),
        (135, False, None, "float32 (this CPU has neither avx512_bf16 nor AMX)"),
        (135, True, None, "bfloat16 (this machine has a GPU)"),
        (19, True, "avx512_bf16", "float32 (a model below 50 M parameters)"),
    ],
)
def test_auto_depends_on_the_size_and_the_machine(
    millions: int, has_gpu: bool, flag: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dtype, "has_gpu", lambda: has_gpu)
    monkeypatch.setattr(dtype, "bfloat16_flag", lambda: flag)
    assert str(find_dtype(AUTO, shape_of(millions))) == expected


def test_the_gpus_of_the_machine_do_not_matter_to_a_run_on_its_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dtype, "has_gpu", lambda: True)
    monkeypatch.setattr(dtype, "bfloat16_flag", lambda: None)
    recipe = make_recipe(Path("model"), model={"dtype": "auto"}, placement={"device": "cpu"})
    assert find_dtype(recipe, shape_of(135)).name == "float32"


def test_what_the_recipe_says_needs_no_reason_unless_the_machine_cannot_do_it_well(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(dtype, "has_gpu", lambda: False)
    monkeypatch.setattr(dtype, "bfloat16_flag", lambda: "amx_bf16")
    recipe = make_recipe(Path("model"), model={"dtype": "bfloat16"})
    assert str(find_dtype(recipe, tiny_shape())) == "bfloat16"
    monkeypatch.setattr(dtype, "bfloat16_flag", lambda: None)
    assert str(find_dtype(recipe, tiny_shape())).startswith("bfloat16 (emulated: this CPU has neither")
    monkeypatch.setattr(dtype, "float16_flag", lambda: "avx512_fp16")
    half = make_recipe(Path("model"), model={"dtype": "float16"})
    assert str(find_dtype(half, tiny_shape())) == "float16"
    monkeypatch.setattr(dtype, "float16_flag", lambda: None)
    assert str(find_dtype(half, tiny_shape())).startswith(
        "float16 (emulated: this CPU has neither avx512_fp16"
    )
    monkeypatch.setattr(dtype, "has_gpu", lambda: True)
    assert str(find_dtype(recipe, tiny_shape())) == "bfloat16"
    assert str(find_dtype(half, tiny_shape())) == "float16"
    assert str(find_dtype(make_recipe(Path("model")), tiny_shape())) == "float32"
    assert with_dtype(AUTO, tiny_shape()).dtype == "float32"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx512_bf16 amx_bf16", ("avx512_bf16", None)),
        ("fpu amx_bf16 amx_fp16", ("amx_bf16", "amx_fp16")),
        ("fpu avx2 avx512_fp16", (None, "avx512_fp16")),
    ],
)
def test_the_flags_are_those_that_linux_lists(
    flags: str, expected: tuple[str | None, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    found = machine.bfloat16_flag.__wrapped__(), machine.float16_flag.__wrapped__()
    assert found == expected


SEVEN_B = seven_b_shape()


def notes(shape: ModelShape = SEVEN_B, **sections: Any) -> list[str]:
    sections["serving"] = {"num_servers": 100} | sections.get("serving", {})
    sections["model"] = {"path": "model", "dtype": "bfloat16"} | sections.get("model", {})
    return disk_notes(make_recipe(Path("model"), **sections), shape)


def test_a_hundred_servers_of_seven_billion_parameters_read_a_terabyte_and_a_half() -> None:
    assert num_parameters(SEVEN_B) == pytest.approx(7.6e9, rel=0.01)
    (note,) = notes()
    assert note.startswith("100 servers read 15.2 GB each, 1,523 GB in all, for every version (")
    assert "Set serving.weight_transport to distributed" in note


@pytest.mark.parametrize(
    ("serving", "dtype", "shared_disk", "is_delta"),
    [
        ({}, "bfloat16", False, True),
        ({}, "bfloat16", True, False),
        ({}, "float32", False, False),
        ({"weight_transport": "distributed"}, "bfloat16", False, False),
        ({"weight_encoding": "delta"}, "float32", True, True),
        ({"weight_encoding": "full"}, "bfloat16", False, False),
    ],
)
def test_deltas_are_sent_where_weights_come_over_a_network_and_where_a_recipe_asks(
    serving: dict[str, Any], dtype: str, shared_disk: bool, is_delta: bool
) -> None:
    model, cluster = {"path": "model", "dtype": dtype}, {"shared_disk": shared_disk}
    recipe = make_recipe(Path("model"), serving=serving, model=model, cluster=cluster)
    kept = num_parameters(SEVEN_B) * (4 if dtype == "float32" else 2)
    assert kept_version_bytes(recipe, SEVEN_B) == (kept if is_delta else 0)
    (line,) = version_lines(recipe, SEVEN_B)
    assert ("or 0.30 GB where 1% of the words change" in line) is is_delta


def test_in_float32_they_read_twice_as_much() -> None:
    (note,) = notes(model={"dtype": "float32"})
    assert "30.5 GB each, 3,046 GB in all" in note


@pytest.mark.parametrize(
    "changes",
    [
        {"serving": {"num_servers": 6}},
        {"model": {"lora": {"rank": 8}}},
        {"serving": {"num_servers": 8}, "trainer": {"num_processes": 8}, "placement": {"colocated": True}},
        {"serving": {"weight_transport": "distributed"}},
        {"shape": tiny_shape()},
        {"shape": dataclasses.replace(SEVEN_B, num_layers=700), "serving": {"num_servers": 1}},
    ],
)
def test_nothing_is_said_where_a_broadcast_gains_little(changes: dict[str, Any]) -> None:
    assert notes(**changes) == []
