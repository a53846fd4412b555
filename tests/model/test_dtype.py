"""What `model.dtype: auto` stands for."""

import dataclasses
from pathlib import Path

import pytest

from asyncrl.model import dtype
from asyncrl.model.dtype import find_dtype, with_dtype
from asyncrl.model.shape import ModelShape
from asyncrl.system import machine
from tests.fakes.recipes import make_recipe
from tests.fakes.shapes import tiny_shape

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
