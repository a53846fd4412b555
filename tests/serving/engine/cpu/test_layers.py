"""Shorter rotary embedding and RMSNorm: the numbers of SGLang's own layers."""

import pytest

CASES = ["rotate", "rotate_apart", "rotate_half_of_each_head", "rotate_pairs"]
CASES += [f"{name}_other_table" for name in CASES]
CASES += ["norm", "norm_residual", "norm_float32_residual"]


@pytest.fixture(scope="module")
def differences(compared: dict[str, list[list[str]]]) -> dict[str, tuple[float, float]]:
    lines = compared["compare_layers"]
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
