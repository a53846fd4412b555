"""Shorter rotary embedding and RMSNorm: the numbers of SGLang's own layers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.serving.engine.environment import engine_environment

CASES = ["rotate", "rotate_apart", "rotate_half_of_each_head", "rotate_pairs"]
CASES += [f"{name}_other_table" for name in CASES]
CASES += ["norm", "norm_residual", "norm_float32_residual"]


@pytest.fixture(scope="module")
def differences() -> dict[str, tuple[float, float]]:
    environment = os.environ | engine_environment(threads=1, has_gpu=False)
    script = Path(__file__).with_name("compare_layers.py")
    process = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    lines = [line.split() for line in process.stdout.splitlines()]
    return {name: (float(difference), float(largest)) for name, difference, largest in lines}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("kind", "epsilon"), [("float32", 2**-23), ("bfloat16", 2**-7)])
def test_a_layer_computes_what_sglang_computes(differences, case: str, kind: str, epsilon: float):
    stem = case.removesuffix("_other_table")
    name = case.replace(stem, f"{stem}_{kind}")
    difference, largest = differences[name]
    # Both round two or three times, at different places.
    assert difference <= 3 * epsilon * largest
    assert largest > 1
