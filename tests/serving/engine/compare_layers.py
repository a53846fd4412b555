"""Run in a process of its own, with the server's environment: SGLang's layers with and without our hooks.

Prints one line per case: its name, the largest difference, and the largest number. compare.py runs it.
"""

import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang.srt.plugins.hook_registry import HookRegistry

from asyncrl.serving.engine.cpu import layers as cpu_layers
from asyncrl.serving.engine.plugin import register

TOKENS, HEADS, KV_HEADS, SIZE = 9, 4, 2, 16


def report(name: str, hooked: object, plain: object) -> None:
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (hooked, plain)), strict=True)
    differences = [((a.float() - b.float()).abs().max(), b.float().abs().max()) for a, b in pairs]
    print(name, *(max(column).item() for column in zip(*differences, strict=True)), flush=True)


def rotate(name: str, dtype: torch.dtype, *, is_joined: bool = True, rotary_size: int = SIZE, neox=True):
    torch.set_default_dtype(dtype)
    embedding = RotaryEmbedding(SIZE, rotary_size, 64, 10000, neox, dtype)
    torch.set_default_dtype(torch.float32)
    whole = torch.randn(TOKENS, (HEADS + 2 * KV_HEADS) * SIZE).to(dtype)
    query, key, _ = whole.split((HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE), -1)
    if not is_joined:
        query, key = query.clone(), key.clone()
    positions = torch.randint(0, 64, (TOKENS,))
    plain = RotaryEmbedding.forward_native.__wrapped__(embedding, positions, query, key)
    report(name, embedding(positions, query, key), plain)
    # A second table, as for positions beyond the first.
    embedding.cos_sin_cache = embedding.cos_sin_cache.flip(0)
    plain = RotaryEmbedding.forward_native.__wrapped__(embedding, positions, query, key)
    report(f"{name}_other_table", embedding(positions, query, key), plain)


def norm(name: str, dtype: torch.dtype, *, has_residual: bool, **options) -> None:
    layer = RMSNorm(SIZE, weight_dtype=dtype, **options)
    layer.weight.data.copy_(torch.rand(SIZE))
    x, residual = 3 * torch.randn(TOKENS, SIZE).to(dtype), torch.randn(TOKENS, SIZE).to(dtype)
    arguments = (x, residual) if has_residual else (x,)
    with torch.inference_mode():
        plain = RMSNorm.forward_native.__wrapped__(layer, *arguments)
        report(name, layer(*arguments), plain)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    register(cpu_layers.hooks())
    HookRegistry.apply_hooks()
    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        rotate(f"rotate_{kind}", dtype)
        rotate(f"rotate_apart_{kind}", dtype, is_joined=False)
        rotate(f"rotate_half_of_each_head_{kind}", dtype, rotary_size=SIZE // 2)
        rotate(f"rotate_pairs_{kind}", dtype, neox=False)
        norm(f"norm_{kind}", dtype, has_residual=False)
        norm(f"norm_residual_{kind}", dtype, has_residual=True)
        norm(f"norm_float32_residual_{kind}", dtype, has_residual=True, fp32_residual=True)
