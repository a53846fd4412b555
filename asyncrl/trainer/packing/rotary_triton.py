"""Rotary positions by one kernel of Triton, forward and backward: a head is read once and written once.

Numbers are float32 between reading and writing, cosines and sines too.

Shapes: C tokens, H heads, D head size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


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
