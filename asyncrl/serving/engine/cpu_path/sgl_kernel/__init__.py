"""Stand-in for SGLang's compiled kernels: what SGLang 0.5.23 needs of them on a CPU without AMX.

Any other name can be imported and fails when it is called. `torch.ops.sgl_kernel.convert_weight_packed` must
stay undefined: SGLang takes its presence for AMX support.
"""

import torch

_WORD = 0xFFFFFFFF


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len):
    """Writes each request's new cache slots, consecutive in `out_cache_loc`, into its row [start, end)."""
    offset = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        length = last - first
        req_to_token[row, first:last] = out_cache_loc[offset : offset + length].to(req_to_token.dtype)
        offset += length


def _multiply(values, constant):
    """Product modulo 2**32 of int64 values below 2**32, without overflowing int64."""
    low, high = values & 0xFFFF, values >> 16
    return (low * constant + (((high * (constant & 0xFFFF)) & 0xFFFF) << 16)) & _WORD


def _rotate(values, bits):
    return ((values << bits) | (values >> (32 - bits))) & _WORD


def _mix(state, key):
    key = _multiply(_rotate(_multiply(key, 0xCC9E2D51), 15), 0x1B873593)
    return (_multiply(_rotate(state ^ key, 13), 5) + 0xE6546B64) & _WORD


def _murmur_hash32(seed, positions, col_indices):
    """MurmurHash3 of (seed, position, token), [N], [N], [V] -> [N, V] uint32, as SGLang's Triton kernel."""
    seed = seed.view(torch.int64)
    state = _mix(_mix(torch.zeros_like(seed), seed & _WORD), (seed >> 32) & _WORD)
    state = _mix(state, positions.to(torch.int64) & _WORD)[:, None]
    state = _mix(state, (col_indices.to(torch.int64) & _WORD)[None, :]) ^ 16
    state = _multiply(state ^ (state >> 16), 0x85EBCA6B)
    state = _multiply(state ^ (state >> 13), 0xC2B2AE35)
    return (state ^ (state >> 16)).to(torch.uint32)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*arguments, **keywords):
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU stand-in")

    return missing


_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_library.impl("murmur_hash32_cpu", _murmur_hash32, "CPU")
