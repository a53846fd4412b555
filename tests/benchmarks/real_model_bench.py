"""Trainer and rollouts on a real model, each against the matrix products that it cannot do without.

    python tests/benchmarks/real_model_bench.py [--model FOLDER_OR_GGUF] [--quick] [--part trainer|rollouts]

The ceiling is measured here, in turn with what it bounds and on one thread: products of the model's own
shapes in its own type, one after the other, and nothing else. For a step that is each weight times the packed
tokens, forward, and twice backward; the output layer sees the response tokens alone. For a decoding step it
is each weight times 64 rows, in the faster of torch's layout and the engine's. Ratios are of CPU seconds, so
that other work on the machine hardly changes them. The default model is that of
recipes/r1_zero_smollm2_cpu.yaml; where it is not made yet, it says so.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The repository first: tests/verifiers would pass for the package.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil
import torch
from fakes.recipes import make_recipe
from serving.engine.servers import VOCABULARY, new_session, running_server, stream
from torch import Tensor
from training_runs import SMOLLM2, SMOLLM2_RECIPE

from asyncrl.launch.prepare import fetch_model
from asyncrl.model.dtype import find_dtype
from asyncrl.model.folder import check_model_folder
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import model_folder
from asyncrl.model.weights import num_parameters
from asyncrl.recipe import Recipe
from asyncrl.records import Batch, ScoredSequence
from asyncrl.serving.engine.cpu.products import PAYS_AFTER, PackedWeight, can_pack
from asyncrl.trainer.ranks import ranks

NUM_RUNNING = 64
RESPONSE = 128
GROUP = 8


@dataclass(frozen=True)
class Load:
    name: str
    num_groups: int
    group_size: int
    prompt_tokens: int
    response_tokens: int

    def batch(self, step: int, vocabulary: int) -> Batch:
        source = random.Random(step)
        sequences = []
        for group in range(self.num_groups):
            prompt = source.choices(range(vocabulary), k=self.prompt_tokens)
            for member in range(self.group_size):
                count = self.response_tokens
                response = source.choices(range(vocabulary), k=count)
                columns = ([-10.8] * count, [step] * count, [False] * count)
                advantage = source.gauss(0, 1)
                sequences.append(
                    ScoredSequence(f"{group}-{member}", prompt, response, *columns, advantage, 0.0)
                )
        return Batch(step, 1.0, sequences)


LOADS = (
    Load("256-token sequences", 2, 8, 32, 224),
    Load("few-shot prompts, 5 tokens", 16, 8, 30, 5),
)


def layer_sizes(shape: ModelShape) -> list[tuple[int, int]]:
    """(outputs, inputs) of the weights of a layer, as both engines fuse them."""
    query, key_value = shape.num_heads * shape.head_size, 2 * shape.num_kv_heads * shape.head_size
    hidden, ffn = shape.hidden_size, shape.ffn_size
    return [(query + key_value, hidden), (hidden, query), (2 * ffn, hidden), (hidden, ffn)]


def cpu_seconds(action: Callable[[], object]) -> float:
    """Of the thread that calls it and its helpers."""
    begin = time.process_time()
    action()
    return time.process_time() - begin


def step_ceiling(shape: ModelShape, dtype: torch.dtype, num_tokens: int, num_targets: int) -> float:
    """CPU seconds of the products of one forward and backward pass."""

    def passes(size: tuple[int, int], rows: int) -> float:
        outputs, inputs = size
        tokens, weight = torch.randn(rows, inputs).to(dtype), torch.randn(size).to(dtype)
        slopes = torch.randn(rows, outputs).to(dtype)

        def all_three() -> tuple[Tensor, Tensor, Tensor]:
            return tokens @ weight.t(), slopes @ weight, slopes.t() @ tokens

        all_three()
        return cpu_seconds(all_three)

    layer = sum(passes(size, num_tokens) for size in layer_sizes(shape))
    return shape.num_layers * layer + passes((shape.vocab_size, shape.hidden_size), num_targets)


def decode_ceiling(shape: ModelShape, dtype: torch.dtype) -> float:
    """CPU seconds of the products of one decoding step; each layer has weights of its own, as in a model.

    The faster of two ways: torch's own product, and the engine's packed weights.
    """
    sizes = [*(layer_sizes(shape) * shape.num_layers), (shape.vocab_size, shape.hidden_size)]
    weights = [PackedWeight(torch.randn(size).to(dtype)) for size in sizes]
    # Without oneDNN's products of this type all are torch's own, as before a weight is packed.
    packs = can_pack(torch.empty(sizes[0], dtype=dtype))
    rows = {inputs: torch.randn(NUM_RUNNING, inputs).to(dtype) for _, inputs in sizes}

    def step() -> None:
        for weight, (_, inputs) in zip(weights, sizes, strict=True):
            weight.product(rows[inputs])

    # Medians, because what is compared with them is a mean over other work too.
    unpacked = statistics.median([cpu_seconds(step) for _ in range(PAYS_AFTER)])
    if not packs:
        return unpacked
    # It packs.
    step()
    assert all(weight.is_packed for weight in weights)
    return min(unpacked, statistics.median([cpu_seconds(step) for _ in range(PAYS_AFTER)]))


def bench_trainer(recipe: Recipe, shape: ModelShape, dtype: torch.dtype, num_rounds: int) -> None:
    # Imported late, after Megatron's warnings of missing CUDA packages are turned off.
    from asyncrl.trainer.parts.table import build_learner

    learner = build_learner(shape, recipe)
    learner.load_base()
    for load in LOADS:
        learner.step(load.batch(0, shape.vocab_size))
        ratios, seconds, walls = [], [], []
        for number in range(1, num_rounds + 1):
            batch = load.batch(number, shape.vocab_size)
            (micro_batches,) = learner.pack(batch, 1)
            sizes = [(len(micro.tokens), len(micro.distinct)) for micro in micro_batches]
            ceiling = sum(step_ceiling(shape, dtype, *size) for size in sizes)
            begin = time.perf_counter()
            seconds.append(cpu_seconds(lambda batch=batch: learner.step(batch)))
            walls.append(time.perf_counter() - begin)
            ratios.append(ceiling / seconds[-1])
        num_tokens = sum(tokens for tokens, _ in sizes)
        best, ratio = min(seconds), statistics.median(ratios)
        print(
            f"trainer, {load.name}: {num_tokens} packed tokens, {best:.2f} CPU s and {min(walls):.2f} s per "
            f"step, {num_tokens / best:.0f} tokens per CPU s, {100 * ratio:.0f}% of the products' "
            f"{num_tokens / best / ratio:.0f}",
            flush=True,
        )


@dataclass(frozen=True)
class Requests:
    """Groups of 8 samples of one prompt, `in_flight` of them at a time."""

    name: str
    num_groups: int
    in_flight: int
    lengths: tuple[int, ...]
    """A sample's length is drawn from these."""


@dataclass(frozen=True)
class Speed:
    tokens_per_second: float
    tokens_per_cpu_second: float


def group_body(random_: random.Random, load: Requests) -> dict[str, Any]:
    prompt = random_.choices(range(2, VOCABULARY), k=12)
    return {
        "input_ids": [prompt] * GROUP,
        "rid": [uuid.uuid4().hex for _ in range(GROUP)],
        "sampling_params": [
            {"temperature": 1.0, "max_new_tokens": random_.choice(load.lengths), "ignore_eos": True}
            for _ in range(GROUP)
        ],
        "return_logprob": True,
        "cache_salt": "bench-v0",
    }


async def measure(url: str, scheduler: psutil.Process, load: Requests) -> Speed:
    random_ = random.Random(0)
    places = asyncio.Semaphore(load.in_flight)
    num_tokens = 0

    async with new_session() as session:

        async def run_group(body: dict[str, Any]) -> None:
            nonlocal num_tokens
            async with places:
                async for event in stream(session, url, body):
                    num_tokens += len(event["output_ids"])

        cpu, start = sum(scheduler.cpu_times()[:2]), time.perf_counter()
        await asyncio.gather(*(run_group(group_body(random_, load)) for _ in range(load.num_groups)))
        seconds = time.perf_counter() - start
        return Speed(num_tokens / seconds, num_tokens / (sum(scheduler.cpu_times()[:2]) - cpu))


def bench_rollouts(folder: Path, shape: ModelShape, dtype: str, num_rounds: int) -> None:
    load = Requests(f"{NUM_RUNNING} running x {RESPONSE} tokens", NUM_RUNNING // 8, 8, (RESPONSE,))
    with tempfile.TemporaryDirectory(prefix="real-model-bench-") as logs:
        server = running_server(
            folder, Path(logs) / "log", dtype=dtype, max_total_tokens=16384, max_running_requests=NUM_RUNNING
        )
        with server as (url, pid):
            family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            scheduler = next(p for p in family if "scheduler" in " ".join(p.cmdline()))
            asyncio.run(measure(url, scheduler, Requests("warm-up", 8, 8, (8,))))
            speeds, ceilings = [], []
            for _ in range(num_rounds):
                ceilings.append(NUM_RUNNING / decode_ceiling(shape, getattr(torch, dtype)))
                speeds.append(asyncio.run(measure(url, scheduler, load)))
    per_second = [speed.tokens_per_cpu_second for speed in speeds]
    ratio = statistics.median(a / b for a, b in zip(per_second, ceilings, strict=True))
    print(
        f"rollouts, {load.name}: {max(speed.tokens_per_second for speed in speeds):.0f} tokens/s, "
        f"{max(per_second):.0f} per CPU s, {100 * ratio:.0f}% of the products' {max(ceilings):.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=SMOLLM2, help="a Hugging Face folder or a GGUF file")
    parser.add_argument("--quick", action="store_true", help="one round: a smoke test, not a measurement")
    parser.add_argument("--part", choices=("trainer", "rollouts"), help="default: both")
    parser.add_argument(
        "--dtype", choices=("auto", "bfloat16", "float32"), default="auto", help="as model.dtype"
    )
    arguments = parser.parse_args()
    if not arguments.model.exists():
        print(f"skipped: {arguments.model} is missing. Train by {SMOLLM2_RECIPE} once, or set --model.")
        return
    num_rounds = 1 if arguments.quick else 5
    warnings.filterwarnings("ignore")
    section = {"path": str(arguments.model.absolute()), "dtype": arguments.dtype}
    recipe = make_recipe(arguments.model, model=section, trainer={"learning_rate": 1e-6})
    recipe = fetch_model(recipe)
    folder = model_folder(recipe.model)
    shape = check_model_folder(folder)
    dtype = find_dtype(recipe, shape)
    print(f"{arguments.model.name}: {num_parameters(shape) / 1e6:.0f} M parameters, {dtype}", flush=True)
    ranks.start(threads=1, seed=0)
    if arguments.part != "rollouts":
        bench_trainer(recipe, shape, getattr(torch, dtype.name), num_rounds)
    if arguments.part != "trainer":
        bench_rollouts(folder, shape, dtype.name, num_rounds)
    ranks.stop()


if __name__ == "__main__":
    main()
