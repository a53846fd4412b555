"""Causal attention over whole sequences that lie one behind the other: one interface, several kernels.

A kernel gets queries, keys and values of all places and the sequences' cumulative lengths, as FlashAttention
takes them. `find_kernel` chooses one by fixed rules and on a GPU tries it once, forward and backward, against
the formula. Whatever runs, torch's math kernel, which stores all scores, never does so on a GPU.

Shapes: Q places, N sequences; in a bucket B sequences, L places each; H heads, G of them key-value, D head
size.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from asyncrl.errors import InputError
from asyncrl.trainer.packing import cpu_attention, gpu_attention
from asyncrl.trainer.packing.limits import UNLIMITED, Limits, Rows
from asyncrl.trainer.packing.trials import find_fault, in_words, is_installed

log = logging.getLogger(__name__)

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
"""By priority. cuDNN, which torch would take first on Hopper, compiles a kernel for each new shape, and each
micro-batch has shapes of its own."""
LARGEST_HEAD = 256
"""Head size of the FlashAttention kernels."""
BITWISE = "bitwise"
"""The kernel of model.bitwise_agreement."""
TRIED_LENGTHS = (130, 33, 33, 1)
TRIED_WINDOW = 20
TOLERANCES = {torch.float32: 1e-2, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Norm of a difference from the formula, relative; float32 may be computed in TF32."""


Attend = Callable[..., Tensor]
"""(query [Q, H, D], key [Q, G, D], value [Q, G, D], rows, scale) -> [Q, H, D], with gradient; with `limits`
where `Kernel` says that it knows them, and `sinks` where these say so. On a CPU a window is in the masks of
`rows`."""


@dataclass(frozen=True, slots=True)
class Kernel:
    attend: Attend
    pads: bool = False
    """Whether sequences of similar lengths should be padded to one: it makes a call per length."""
    takes_masks: bool = False
    """Whether sequences that share a beginning may be one, on a CPU, with a mask."""
    has_windows: bool = False
    has_caps: bool = False
    has_sinks: bool = False
    """Which `Limits` it knows on a GPU; on a CPU `sdpa` knows all."""
    package: str = "torch"
    """The module that it needs."""
    capability: tuple[int, int] = (8, 0)
    """Least compute capability of the GPU."""
    flash: str | None = None
    """torch's implementation of FlashAttention that it needs; None: the one torch is built with."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The dimensions and dtype that a kernel must support."""

    count: int
    kv_count: int
    size: int
    dtype: torch.dtype
    limits: Limits = UNLIMITED
    """Limits of the layers that have some; others have none."""


def attend_by_formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    scale: float,
    limits: Limits = UNLIMITED,
    sinks: Tensor | None = None,
) -> Tensor:
    """softmax(Q K^T x scale) V of each sequence alone, in float32: what the kernels are compared with."""
    outputs = []
    copies = query.shape[1] // key.shape[1]
    for begin, end in pairwise(rows.cumulative.tolist()):
        q, k, v = (x[begin:end].float().transpose(0, 1) for x in (query, key, value))
        k, v = (x.repeat_interleave(copies, dim=0) for x in (k, v))
        everything = torch.ones(end - begin, end - begin, dtype=torch.bool, device=query.device)
        is_hidden = everything.triu(1)
        if limits.window is not None:
            is_hidden |= everything.tril(-limits.window)
        scores = q @ k.mT * scale
        if limits.cap is not None:
            scores = limits.cap * torch.tanh(scores / limits.cap)
        scores = scores.masked_fill(is_hidden, -math.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, end - begin, 1)], -1)
        weights = scores.softmax(-1)[..., : end - begin]
        outputs.append((weights @ v).transpose(0, 1))
    return torch.cat(outputs).to(query.dtype)


def attend_in_buckets(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    scale: float,
    limits: Limits = UNLIMITED,
    sinks: Tensor | None = None,
) -> Tensor:
    """torch's scaled_dot_product_attention, one call per length."""
    sizes = [count * length for count, length in rows.buckets]
    masks = rows.masks or (None,) * len(rows.buckets)
    outputs = []
    for size, mask, *parts in zip(
        rows.buckets, masks, *(x.split(sizes) for x in (query, key, value)), strict=True
    ):
        q, k, v = (x.unflatten(0, size).transpose(1, 2) for x in parts)
        if limits.cap is not None:
            assert sinks is None, "no model has soft caps and sinks"
            output = _attend_capped(q, k, v, mask, scale, limits.cap)
        elif sinks is not None:
            output = cpu_attention.attend_to_sinks(q, k, v, scale, mask, sinks)
        else:
            output = _attend_bucket(q, k, v, mask, scale)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _attend_bucket(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """[B, H, L, D], [B, G, L, D], [B, G, L, D], [B, L, L] -> [B, H, L, D]."""
    if cpu_attention.is_for(query):
        return cpu_attention.attend(query, key, value, scale, mask)
    is_grouped = query.shape[1] != key.shape[1]
    attend = functools.partial(scaled_dot_product_attention, is_causal=mask is None, scale=scale)
    if query.device.type == "cpu":
        of_heads = None if mask is None else mask[:, None]
        return attend(query, key, value, attn_mask=of_heads, enable_gqa=is_grouped)
    assert mask is None, "on a GPU sequences are laid out one by one"
    if is_grouped and query.dtype is torch.float32:
        # Of the fused kernels only those of 16 bits know grouped queries.
        copies = query.shape[1] // key.shape[1]
        key, value, is_grouped = (*(x.repeat_interleave(copies, dim=1) for x in (key, value)), False)
    with sdpa_kernel(FUSED, set_priority=True):
        return attend(query, key, value, enable_gqa=is_grouped)


def _attend_capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, cap: float
) -> Tensor:
    """[B, H, L, D], [B, G, L, D], [B, G, L, D] -> [B, H, L, D]: scores c tanh(score / c) (Gemma 2: Riviere et
    al. 2024). torch has no kernel for it outside of a GPU's compiler: all scores of a bucket are stored, in
    float32.

    `mask` [B, L, L] says which places each looks at; by default all before it and itself."""
    copies = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(copies, dim=1) for each in (key, value))
    scores = query.float() @ key.float().mT * scale
    scores = cap * torch.tanh(scores / cap)
    length = query.shape[2]
    looks = torch.ones(1, length, length, dtype=torch.bool).tril_() if mask is None else mask
    weights = scores.masked_fill(~looks[:, None], -math.inf).softmax(-1)
    return weights.to(value.dtype) @ value


def _attend_bitwise(query: Tensor, key: Tensor, value: Tensor, rows: Rows, scale: float) -> Tensor:
    """The servers' own attention; its gradient is that of `attend_in_buckets`."""

    def ordinary(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_in_buckets(query, key, value, rows, scale)

    return cpu_attention.attend_bitwise(query, key, value, rows.buckets, scale, ordinary)


KERNELS = {
    "flash_attn_4": Kernel(
        gpu_attention.torch_varlen,
        has_windows=True,
        has_sinks=True,
        package="flash_attn.cute",
        capability=(9, 0),
        flash="FA4",
    ),
    "flash_attn": Kernel(
        gpu_attention.flash_attn,
        has_windows=True,
        has_caps=True,
        has_sinks=True,
        package="flash_attn.flash_attn_interface",
    ),
    "transformer_engine": Kernel(
        gpu_attention.transformer_engine, has_windows=True, package="transformer_engine.pytorch"
    ),
    "torch_varlen": Kernel(
        gpu_attention.torch_varlen,
        has_windows=True,
        has_sinks=True,
        package="torch.nn.attention.varlen",
    ),
    "sdpa": Kernel(attend_in_buckets, pads=True, takes_masks=True),
    "formula": Kernel(attend_by_formula),
    BITWISE: Kernel(_attend_bitwise, pads=True),
}
"""By name, in the order in which auto takes them on a GPU; trainer.attention names all but the last two."""
CHOICES = tuple(name for name in KERNELS if name not in ("formula", BITWISE))


_LIMITS = {
    "window": ("has_windows", "sliding windows"),
    "cap": ("has_caps", "soft-capped scores"),
    "has_sinks": ("has_sinks", "attention sinks"),
}
"""Field of `Limits` -> field of `Kernel`, and what an error calls it."""


def find_kernel(name: str, device: torch.device, heads: Heads) -> str:
    """The kernel of KERNELS for trainer.attention `name`: on a CPU sdpa, on a GPU the first that works.

    Raises InputError where the one that is named does not work, or none does.
    """
    asked = CHOICES if name == "auto" else (name,)
    if device.type == "cpu" and name == "auto":
        return "sdpa"
    faults = {}
    for each in asked:
        fault = _find_gap(each, device, heads)
        if fault is None:
            fault = _try(KERNELS[each], device, heads)
            if fault is None:
                log.info("attention by %s", each)
                return each
            log.warning("attention: %s does not work here: %s", each, fault)
        faults[each] = fault
    reasons = "; ".join(f"{each}: {fault}" for each, fault in faults.items())
    what = f"{heads.count} heads ({heads.kv_count} key-value) of size {heads.size} in {heads.dtype}"
    raise InputError(
        f"trainer.attention is {name}, but no such kernel computes {what} on {_device_name(device)} "
        f"({reasons}). torch's math kernel would, but it stores all scores, so it is never used. Set "
        f"model.dtype to bfloat16, install flash-attn or Transformer Engine, or set trainer.attention to "
        f"auto; placement.device: cpu trains on the CPU."
    )


def _find_gap(name: str, device: torch.device, heads: Heads) -> str | None:
    """Why the rules exclude the kernel; None where it may be tried."""
    if device.type == "cuda":
        for limit, (knows, called) in _LIMITS.items():
            if getattr(heads.limits, limit) and not getattr(KERNELS[name], knows):
                return f"it knows no {called}"
    if name == "sdpa":
        return None
    package = KERNELS[name].package
    if device.type == "cpu":
        return "it runs on a GPU only"
    if not is_installed(package):
        return f"{package.partition('.')[0]} is not installed"
    if heads.dtype is torch.float32:
        return "it takes 16-bit numbers only (model.dtype is float32)"
    if heads.size > LARGEST_HEAD or heads.size % 8:
        return f"it takes head sizes up to {LARGEST_HEAD} divisible by 8"
    if torch.cuda.get_device_capability(device) < KERNELS[name].capability:
        return "it needs compute capability {}.{} or newer".format(*KERNELS[name].capability)
    return None


def _try(kernel: Kernel, device: torch.device, heads: Heads) -> str | None:
    """Tests the kernel's outputs and gradients on a small input; returns the defect, or None."""
    try:
        gpu_attention.route_flash_attention(kernel.flash)
    except Exception as error:
        return in_words(error)
    generator = torch.Generator().manual_seed(0)
    edges = torch.tensor([0, *TRIED_LENGTHS]).cumsum(0)
    buckets = ((1, TRIED_LENGTHS[0]), (2, TRIED_LENGTHS[1]), (1, TRIED_LENGTHS[3]))
    rows = Rows(edges.int().to(device), TRIED_LENGTHS[0], buckets)
    counts = (heads.count, heads.kv_count, heads.kv_count, heads.count)
    inputs = [
        torch.randn(int(edges[-1]), count, heads.size, generator=generator).to(device, heads.dtype)
        for count in counts
    ]
    scale = heads.size**-0.5
    attends: list[tuple[Attend, Attend, list[Tensor]]] = [(kernel.attend, attend_by_formula, inputs)]
    if heads.limits != UNLIMITED and device.type == "cuda":
        window = None if heads.limits.window is None else min(heads.limits.window, TRIED_WINDOW)
        limits = dataclasses.replace(heads.limits, window=window)
        limited = functools.partial(kernel.attend, limits=limits)
        sinks = [torch.linspace(-1, 1, heads.count).to(device, heads.dtype)] * limits.has_sinks
        attends.append((limited, functools.partial(attend_by_formula, limits=limits), [*inputs, *sinks]))
    for attend, formula, tensors in attends:
        if fault := _compare(attend, formula, tensors, rows, scale):
            return fault
    return None


def _compare(attend: Attend, formula: Attend, inputs: list[Tensor], rows: Rows, scale: float) -> str | None:
    expected = _outputs_and_gradients(formula, inputs, rows, scale)
    names = ("outputs", "queries", "keys", "values", "sinks")[: len(expected)]
    return find_fault(
        lambda: _outputs_and_gradients(attend, inputs, rows, scale),
        dict(zip(names, expected, strict=True)),
        TOLERANCES[inputs[0].dtype],
    )


def _outputs_and_gradients(attend: Attend, inputs: list[Tensor], rows: Rows, scale: float) -> list[Tensor]:
    """Float32: outputs, gradients of queries, keys, values and sinks; the fourth of `inputs` is that of
    outputs, a fifth are the sinks."""
    query, key, value, direction, *of_heads = (x.detach() for x in inputs)
    leaves = [each.requires_grad_() for each in (query, key, value, *of_heads)]
    with torch.enable_grad():
        output = attend(*leaves[:3], rows, scale, **({"sinks": leaves[3]} if of_heads else {}))
        gradients = torch.autograd.grad(output, leaves, direction)
    return [x.detach().float() for x in (output, *gradients)]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
