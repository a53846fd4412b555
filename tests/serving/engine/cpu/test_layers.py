"""Shorter rotary embedding and RMSNorm: the numbers of SGLang's own layers, and the formulas in float64."""

import pytest
import torch
from torch import Tensor

from asyncrl.serving.engine.cpu.layers import Rotation, joined, rms_norm

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


TOKENS, SIZE, POSITIONS = 7, 16, 50
TYPES = [torch.float32, torch.bfloat16]


def random_numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_rounded(result: Tensor, exact: Tensor) -> None:
    # Two roundings, of 24 or of 8 bits, at the size of the largest terms.
    assert (result.double() - exact).abs().max() <= 2 * torch.finfo(result.dtype).eps * exact.abs().max()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("heads", [1, 5])
def test_pairs_turn_by_the_angle_of_their_position(dtype: torch.dtype, heads: int):
    angles = torch.arange(POSITIONS)[:, None] * 10000 ** (-torch.arange(SIZE // 2) / (SIZE // 2))
    table = torch.cat((angles.cos(), angles.sin()), -1).to(dtype)
    positions = torch.tensor([0, 1, 2, 49, 7, 7, 30])
    x = random_numbers(TOKENS, heads, SIZE).to(dtype)
    rotated = Rotation(table).at(positions)(x)
    turn = torch.complex(*table.double()[positions].view(TOKENS, 1, 2, -1).unbind(2))
    pairs = torch.complex(*x.double().view(TOKENS, heads, 2, -1).unbind(2)) * turn
    assert rotated.dtype is dtype and torch.equal(rotated[0], x[0])
    assert_rounded(rotated, torch.cat((pairs.real, pairs.imag), -1))


def test_neighbours_are_joined_without_a_copy():
    whole = random_numbers(TOKENS, 20)
    query, key, value = whole.split((12, 4, 4), -1)
    both = joined(query, key)
    assert both is not None and torch.equal(both, whole[:, :16]) and both.data_ptr() == whole.data_ptr()
    assert joined(query, value) is None
    assert joined(key, query) is None
    assert joined(query, key.clone()) is None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("has_residual", [False, True])
def test_the_norm_is_of_the_rounded_sum(dtype: torch.dtype, has_residual: bool):
    x, weight = 30 * random_numbers(TOKENS, SIZE).to(dtype), random_numbers(SIZE, seed=1).to(dtype)
    residual = random_numbers(TOKENS, SIZE, seed=2).to(dtype) if has_residual else None
    normed, total = rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(total, x if residual is None else x + residual)
    exact = total.double()
    exact = exact * (exact.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    assert normed.dtype is dtype
    assert_rounded(normed, exact)
