"""Run in a process of its own, with the server's environment: which sampler a batch of SGLang's gets.

Prints one line per case: its name, and "ours" or "theirs". compare.py runs it.
"""

from types import SimpleNamespace

import torch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import TOP_K_ALL

from asyncrl.serving.engine.cpu import sampler as cpu_sampler


def batch(*, top_k: int = TOP_K_ALL, top_p: float = 1.0, min_p: float = 0.0) -> SamplingBatchInfo:
    """Two requests, as SGLang describes them."""
    return SamplingBatchInfo(
        temperatures=torch.ones(2, 1),
        top_ps=torch.full((2,), top_p),
        top_ks=torch.full((2,), top_k, dtype=torch.int32),
        min_ps=torch.full((2,), min_p),
        is_all_greedy=top_k <= 1,
        is_any_greedy=top_k <= 1,
        need_top_p_sampling=top_p != 1,
        need_top_k_sampling=top_k != TOP_K_ALL,
        need_min_p_sampling=min_p > 0,
        vocab_size=30,
        device="cpu",
        penalizer_orchestrator=SimpleNamespace(merge=lambda _: None, filter=lambda _: None),
    )


def report(name: str, info: SamplingBatchInfo) -> None:
    count = len(info.top_ks)
    sampler = SimpleNamespace(
        enable_deterministic=False,
        _preprocess_logits=lambda logits, _: logits,
        _sync_token_ids_across_tp=lambda *_: None,
    )
    output = SimpleNamespace(next_token_logits=torch.randn(count, 30))
    arguments = (sampler, output, info, True, [0] * count, [None] * count, None)
    tokens = cpu_sampler._sample_shortly(lambda *_, **__: None, *arguments)
    print(name, "theirs" if tokens is None else "ours", flush=True)


def main() -> None:
    others = {
        "greedy": {"top_k": 1},
        "top_k": {"top_k": 2},
        "top_p": {"top_p": 0.9},
        "min_p": {"min_p": 0.1},
    }
    report("plain", batch())
    for name, parameters in others.items():
        report(name, batch(**parameters))
        mixed = batch()
        mixed.merge_batch(batch(**parameters))
        report(f"among_{name}", mixed)
        mixed.filter_batch([0, 1], torch.tensor([0, 1]))
        report(f"after_{name}", mixed)


if __name__ == "__main__":
    main()
