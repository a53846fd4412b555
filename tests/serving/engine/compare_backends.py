"""Run in a process of its own, with the server's environment: both CPU attention backends on random batches.

Prints one line per case: its name and the largest difference. compare.py runs it.
"""

from types import SimpleNamespace

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from asyncrl.serving.engine.cpu.attention import BatchedAttention, even_share, plan_buckets

NUM_SLOTS, LONGEST, HEAD_SIZE = 8192, 700, 16


class Pool:
    """The part of SGLang's key-value pool that the backends use; one layer."""

    def __init__(self, num_heads: int, dtype: torch.dtype) -> None:
        self.keys = torch.randn(NUM_SLOTS, num_heads, HEAD_SIZE).to(dtype)
        self.values = torch.randn(NUM_SLOTS, num_heads, HEAD_SIZE).to(dtype)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.keys

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.values

    def set_kv_buffer(self, layer, location, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys[location.loc] = keys
        self.values[location.loc] = values


def compare(name: str, mode: ForwardMode, prefixes: list[int], extents: list[int], **options) -> None:
    num_heads, num_kv_heads = options.get("heads", (4, 2))
    dtype = options.get("dtype", torch.float32)
    lengths = [prefix + extent for prefix, extent in zip(prefixes, extents, strict=True)]
    # Rows of the request table in another order than the batch, as after other requests have ended.
    rows = torch.randperm(len(lengths) + 3)[: len(lengths)]
    table = torch.zeros(len(lengths) + 3, LONGEST, dtype=torch.int32)
    slots = (torch.randperm(NUM_SLOTS - 1) + 1)[: sum(lengths)].int().split(lengths)
    for row, own in zip(rows, slots, strict=True):
        table[row, : len(own)] = own
    runner = SimpleNamespace(
        device="cpu",
        dtype=dtype,
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        token_to_kv_pool=Pool(num_kv_heads, dtype),
    )
    batch = SimpleNamespace(
        forward_mode=mode,
        req_pool_indices=rows,
        seq_lens=torch.tensor(lengths),
        extend_prefix_lens=torch.tensor(prefixes),
        extend_seq_lens=torch.tensor(extents),
        out_cache_loc=torch.cat([own[prefix:] for own, prefix in zip(slots, prefixes, strict=True)]).long(),
        encoder_lens=None,
    )
    layer = SimpleNamespace(
        layer_id=0,
        tp_q_head_num=num_heads,
        tp_k_head_num=num_kv_heads,
        qk_head_dim=HEAD_SIZE,
        v_head_dim=HEAD_SIZE,
        scaling=HEAD_SIZE**-0.5,
        is_cross_attention=False,
        attn_type=AttentionType.DECODER,
        sliding_window_size=options.get("window", -1),
        logit_cap=0.0,
    )
    tokens = sum(extents)
    q = torch.randn(tokens, num_heads * HEAD_SIZE).to(dtype)
    k, v = torch.randn(2, tokens, num_kv_heads, HEAD_SIZE).to(dtype)
    outputs = []
    for backend_class in (TorchNativeAttnBackend, BatchedAttention):
        backend = backend_class(runner)
        backend.init_forward_metadata(batch)
        forward = backend.forward_decode if mode.is_decode() else backend.forward_extend
        outputs.append(forward(q, k, v, layer, batch).view(tokens, -1).float())
    print(name, (outputs[0] - outputs[1]).abs().max().item(), flush=True)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    decode, extend = ForwardMode.DECODE, ForwardMode.EXTEND
    mixed = [0, 1, 2, 3, 30, 31, 33, 40, 200, 210, 220, 600]
    compare("decode", decode, mixed, [1] * 12)
    compare("decode_one", decode, [17], [1])
    compare("decode_many_alike", decode, [24] * 90, [1] * 90)
    compare("decode_multi_head", decode, mixed, [1] * 12, heads=(4, 4))
    compare("decode_one_kv_head", decode, mixed, [1] * 12, heads=(4, 1))
    compare("decode_bfloat16", decode, mixed, [1] * 12, dtype=torch.bfloat16)
    compare("decode_bfloat16_short", decode, [3, 90, 1, 40] * 5, [1] * 20, dtype=torch.bfloat16)
    for heads in ((6, 3), (8, 8), (10, 5)):
        name = f"decode_bfloat16_{heads[1]}_kv_heads"
        compare(name, decode, [40] * 14 + mixed, [1] * 26, dtype=torch.bfloat16, heads=heads)
    compare("decode_bfloat16_buckets", decode, [159] * 30, [1] * 30, dtype=torch.bfloat16)
    compare("decode_window", decode, mixed, [1] * 12, window=8)
    compare("extend", extend, [0] * 6, [1, 5, 12, 12, 13, 400])
    compare("extend_on_prefixes", extend, [0, 40, 399, 7, 100, 12], [400, 3, 1, 7, 100, 12])
    compare("extend_multi_head", extend, [0, 9, 30, 0], [5, 5, 1, 60], heads=(4, 4))
    compare("extend_bfloat16", extend, [0, 9, 30, 0], [5, 5, 1, 60], dtype=torch.bfloat16)
    compare("extend_window", extend, [0, 9, 30, 0], [5, 5, 1, 60], window=8)
    lengths = torch.randint(10, 500, (64,)).tolist()
    plans = plan_buckets(lengths, [1] * 64, even_share(lengths, 8192))
    assert sorted(place for plan in plans for place in plan) == list(range(64))
    padded = sum(len(plan) * max(lengths[place] for place in plan) for plan in plans)
    print("padded_keys_per_key", padded / sum(lengths))
    print("calls", len(plans))
    alike = [130] * 64
    sizes = [len(plan) for plan in plan_buckets(alike, [1] * 64, even_share(alike, 4096))]
    print("smallest_bucket_of_alike", min(sizes) / max(sizes))
