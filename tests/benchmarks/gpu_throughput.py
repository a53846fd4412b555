"""Training throughput on the GPUs of this machine: tokens per second, MFU and memory of Qwen3 shapes.

    python tests/benchmarks/gpu_throughput.py [--model 0.6b|1.7b] [--recompute KIND] [--json FILE]
    torchrun --nproc-per-node 8 tests/benchmarks/gpu_throughput.py --model 1.7b --tensor 2 --sequence-parallel

Random weights, random prompts of 512 tokens with 8 responses of 256 to 4096 each, bfloat16 with float32
master weights, whole steps (forward, backward, clipping, Adam). The best and the median of the steps after
the second, then one more for the names of the attention operators that ran. MFU counts what
asyncrl/model/flops.py says: a shared prompt once, no recomputation.
"""

import argparse
import json
import os
import random
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from fakes.recipes import make_recipe

from asyncrl.model.layout import check_layout
from asyncrl.model.shape import ModelShape
from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.ranks import ranks


def qwen3(num_layers: int, hidden_size: int, ffn_size: int) -> ModelShape:
    return ModelShape(
        architecture="Qwen3ForCausalLM",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=16,
        num_kv_heads=8,
        head_size=128,
        ffn_size=ffn_size,
        vocab_size=151_936,
        max_positions=40_960,
        rope_theta=1e6,
        rope_scaling_factor=None,
        norm_epsilon=1e-6,
        is_tied=True,
        has_qkv_bias=False,
        has_qk_norm=True,
    )


LARGEST_KERNELS = 8
ATTENTION = re.compile("scaled_dot_product|attention|attn|fmha|sdpa", re.IGNORECASE)
SHAPES = {"0.6b": qwen3(28, 1024, 3072), "1.7b": qwen3(28, 2048, 6144)}


def make_batch(step: int, num_groups: int, longest: int) -> Batch:
    """Lengths are log-uniform, so that the long ones are few."""
    source = random.Random(step)
    sequences = []
    for group in range(num_groups):
        prompt = [source.randrange(150_000) for _ in range(512)]
        for member in range(8):
            length = round(256 * (longest / 256) ** source.random())
            sequences.append(
                ScoredSequence(
                    sequence_id=f"{group}-{member}",
                    prompt_tokens=prompt,
                    response_tokens=[source.randrange(150_000) for _ in range(length)],
                    behavior_logprobs=[-11.9] * length,
                    token_versions=[step] * length,
                    are_continued=[False] * length,
                    advantage=source.gauss(0, 1),
                    reward=0.0,
                )
            )
    return Batch(step, 1.0, sequences)


def profiled(work: Callable[[], object]) -> dict[str, str | float]:
    """Operators and kernels that attend, as the profiler sees them during `work`; on a GPU also the share of
    its time that kernels run, and the largest parts of that time."""
    begin = time.perf_counter()
    with torch.profiler.profile() as profile:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    events = profile.key_averages()
    attending = sorted({event.key for event in events if ATTENTION.search(event.key)})
    found: dict[str, str | float] = {"attention operators": ", ".join(attending) or "none seen"}
    # An operator's own device time is that of the kernels which it starts: a kernel is in the list as well.
    on_device = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    if on_device:
        total = sum(event.self_device_time_total for event in on_device)
        largest = sorted(on_device, key=lambda event: -event.self_device_time_total)[:LARGEST_KERNELS]
        found["kernels' share of a profiled step"] = total / 1e6 / seconds
        found["largest kernels"] = "; ".join(
            f"{event.self_device_time_total / total:.1%} {event.key[:60]}" for event in largest
        )
    return found


def adam_of(optimizer: object) -> str:
    """The class that computes the update: Transformer Engine's, apex's or torch's."""
    inner = optimizer.chained_optimizers[0].optimizer
    return f"{type(inner).__module__}.{type(inner).__name__}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="0.6b")
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--attention", default="auto", help="as trainer.attention")
    parser.add_argument("--tokens-per-micro-batch", type=int, default=16384)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=8)
    for size in ("tensor", "pipeline", "virtual-stages", "context"):
        parser.add_argument(f"--{size}", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument(
        "--distributed-optimizer", action=argparse.BooleanOptionalAction, help="default: as a run has it"
    )
    return parser.parse_args()


def report(arguments: argparse.Namespace, figures: dict[str, str | float]) -> None:
    """To the terminal and to the file, by the first rank."""
    if not ranks.is_first():
        return
    print(f"Qwen3 {arguments.model}")
    for name, value in figures.items():
        print(f"{name}: {value:,.4g}" if isinstance(value, float) else f"{name}: {value}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures))


def main() -> int:
    arguments = parse_arguments()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")
    names = ("tensor", "pipeline", "virtual_stages", "context", "sequence_parallel", "distributed_optimizer")
    trainer = {
        "num_processes": int(os.environ.get("WORLD_SIZE", "1")),
        "parallel": {name: getattr(arguments, name) for name in names},
        "recompute": arguments.recompute,
        "attention": arguments.attention,
        "tokens_per_micro_batch": arguments.tokens_per_micro_batch,
        # Small enough that random weights stay what they are.
        "learning_rate": 1e-7,
    }
    recipe = make_recipe(Path("none"), trainer=trainer, model={"dtype": "bfloat16"})
    shape = SHAPES[arguments.model]
    ranks.start(threads=1, seed=0, layout=check_layout(recipe, shape))
    from asyncrl.trainer.network.layer_specs import has_transformer_engine
    from asyncrl.trainer.parts.table import build_learner

    learner = build_learner(shape, recipe)
    learner.weights_changed()
    seconds, tokens, shares = [], [], []
    for step in range(arguments.steps):
        batch = make_batch(step, arguments.groups, arguments.longest)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        metrics = learner.step(batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        tokens.append(metrics["num_packed_tokens"])
        shares.append(learner.passes.utilisation(seconds[-1]).get("mfu", float("nan")))
    rates = [count / each for count, each in zip(tokens, seconds, strict=True)][2:]
    figures: dict[str, str | float] = {
        "device": f"{torch.cuda.get_device_name()} x {trainer['num_processes']}",
        "layers": "Transformer Engine" if has_transformer_engine() else "local layers",
        "packed tokens/s, best": max(rates),
        "packed tokens/s, median": statistics.median(rates),
        "MFU, best": max(shares[2:]),
        "MFU, median": statistics.median(shares[2:]),
        "peak memory of rank 0, GiB": torch.cuda.max_memory_allocated() / 2**30,
        "attention": learner.kernel,
        "Adam": adam_of(learner.optimizer),
    }
    report(arguments, figures)
    # A step of all ranks: each is in the collectives of the others. The profiler may fail; the figures stay.
    report(arguments, {**figures, **profiled(lambda: learner.step(make_batch(0, 4, arguments.longest)))})
    ranks.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
