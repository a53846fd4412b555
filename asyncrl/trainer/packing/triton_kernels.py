"""Kernels of Triton: the softmax over logits and its gradient (`network.output_kernels`), rotary positions.

`sums` keeps a running maximum, so that it reads a row once (Milakov and Gimelshein 2018, arXiv 1805.02867).
`fill` may overwrite the logits: each number depends on its own logit and on its row's numbers alone. A logit
of -inf has probability 0 and gradient 0. `turn` reads a head once and writes it once, forward and backward.
Numbers are float32 between reading and writing.

Shapes: C tokens, H heads, D head size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

SUMS_AT_ONCE = 8192
"""Columns of a row that a program holds."""
FILLED_AT_ONCE = 4096


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _tempered(x, temperature, cap, HAS_CAP: tl.constexpr):  # type: ignore[no-untyped-def]
    if HAS_CAP:
        x = tl.where(x == float("-inf"), x, cap * _tanh(x / cap))
    return x / temperature


@triton.jit
def _sums(  # type: ignore[no-untyped-def]
    logits,
    columns,
    largest,
    totals,
    weighted,
    chosen,
    width,
    temperature,
    cap,
    HAS_CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    begin = logits + row * width
    top = tl.full((), -1e30, tl.float32)
    total = tl.zeros((), tl.float32)
    moment = tl.zeros((), tl.float32)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(begin + at, mask=at < width, other=float("-inf")).to(tl.float32)
        x = _tempered(x, temperature, cap, HAS_CAP)
        higher = tl.maximum(top, tl.max(x, 0))
        shrunk = tl.exp(top - higher)
        moved = x - higher
        e = tl.exp(moved)
        moment = (moment + (top - higher) * total) * shrunk + tl.sum(tl.where(e > 0, moved, 0.0) * e, 0)
        total = total * shrunk + tl.sum(e, 0)
        top = higher
    own = tl.load(begin + tl.load(columns + row)).to(tl.float32)
    tl.store(largest + row, top)
    tl.store(totals + row, total)
    tl.store(weighted + row, moment)
    tl.store(chosen + row, _tempered(own, temperature, cap, HAS_CAP) - top)


@triton.jit
def _fill(  # type: ignore[no-untyped-def]
    logits,
    out,
    normalisers,
    entropies,
    columns,
    of_targets,
    of_all,
    of_entropies,
    width,
    temperature,
    cap,
    HAS_CAP: tl.constexpr,
    HAS_ENTROPIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(logits + row * width + at, mask=at < width, other=float("-inf")).to(tl.float32)
    logprobs = _tempered(raw, temperature, cap, HAS_CAP) - tl.load(normalisers + row)
    p = tl.exp(logprobs)
    factor = tl.load(of_all + row)
    if HAS_ENTROPIES:
        gaps = tl.where(p > 0, logprobs, 0.0) + tl.load(entropies + row)
        factor = factor + tl.load(of_entropies + row) * gaps
    slopes = -p * factor
    slopes = tl.where(at == tl.load(columns + row), slopes + tl.load(of_targets + row), slopes)
    slopes = slopes / temperature
    if HAS_CAP:
        bent = _tanh(raw / cap)
        slopes = slopes * (1.0 - bent * bent)
    tl.store(out + row * width + at, slopes.to(out.dtype.element_ty), mask=at < width)


def sums(
    logits: Tensor, columns: Tensor, temperature: float, cap: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`Kernel.sums` of contiguous `logits` whose columns that are never sampled hold -inf."""
    assert logits.is_contiguous()
    found = torch.empty(4, len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        arguments = (logits, columns, *found, logits.shape[1], temperature, cap or 1.0, cap is not None)
        _sums[(len(logits),)](*arguments, BLOCK=SUMS_AT_ONCE, num_warps=16)
    largest, totals, weighted, chosen = found
    return largest, totals, weighted, chosen


def fill(
    logits: Tensor,
    out: Tensor,
    normalisers: Tensor,
    entropies: Tensor,
    columns: Tensor,
    of_targets: Tensor,
    of_all: Tensor,
    of_entropies: Tensor | None,
    temperature: float,
    cap: float | None,
) -> None:
    """`Kernel.fill` of contiguous matrices; rows as in `Slopes`."""
    assert logits.is_contiguous() and out.is_contiguous()
    if not len(logits):
        return
    rows = [each.contiguous() for each in (normalisers, entropies, columns, of_targets, of_all)]
    others = of_all if of_entropies is None else of_entropies.contiguous()
    grid = (len(logits), triton.cdiv(logits.shape[1], FILLED_AT_ONCE))
    arguments = (logits, out, *rows, others, logits.shape[1], temperature, cap or 1.0)
    _fill[grid](*arguments, cap is not None, of_entropies is not None, BLOCK=FILLED_AT_ONCE, num_warps=8)


@triton.jit
def _turn(  # type: ignore[no-untyped-def]
    heads,
    out,
    cosines,
    sines,
    token_stride,
    head_stride,
    num_heads,
    sign,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    is_there = (head < num_heads) & (at < HALF)
    angle = token * 2 * HALF + at
    cosine = tl.load(cosines + angle, mask=at < HALF, other=0.0)
    sine = sign * tl.load(sines + angle, mask=at < HALF, other=0.0)
    begin = heads + token * token_stride + head * head_stride + at
    first = tl.load(begin, mask=is_there, other=0.0).to(tl.float32)
    second = tl.load(begin + HALF, mask=is_there, other=0.0).to(tl.float32)
    to = out + (token * num_heads + head) * 2 * HALF + at
    tl.store(to, (first * cosine - second * sine).to(out.dtype.element_ty), mask=is_there)
    tl.store(to + HALF, (second * cosine + first * sine).to(out.dtype.element_ty), mask=is_there)


def turn(heads: Tensor, cosines: Tensor, sines: Tensor, sign: float) -> Tensor:
    """[C, H, D] -> [C, H, D] contiguous: rotated by the angles of `cosines` and `sines` [C, 1, D], whose
    halves are equal, or back for a `sign` of -1."""
    if heads.stride(-1) != 1:
        heads = heads.contiguous()
    num_tokens, num_heads, size = heads.shape
    out = torch.empty_like(heads, memory_format=torch.contiguous_format)
    if heads.numel():
        arguments = (
            heads,
            out,
            cosines.contiguous(),
            sines.contiguous(),
            *heads.stride()[:2],
            num_heads,
            sign,
        )
        blocks = (triton.next_power_of_2(num_heads), triton.next_power_of_2(size // 2))
        _turn[(num_tokens,)](*arguments, size // 2, *blocks)
    return out
