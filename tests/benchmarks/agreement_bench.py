"""The cost of model.bitwise_agreement: CPU time of servers and trainer with it over that without.

    python tests/benchmarks/agreement_bench.py [--rounds 3] [--tokens 96]

A real server answers 64 requests at once, then 4; the trainer then takes steps on the 64. Both modes take
turns on the same requests. CPU seconds, which hardly depend on what else the machine does; medians of the
rounds, and the largest difference between the two engines' log-probs.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from fakes.learners import make_learner
from fakes.models import write_model
from serving.engine.servers import new_session, post, running_server

from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.ranks import ranks

SHAPES = {
    "0.6M": {"hidden_size": 128, "num_hidden_layers": 3, "head_dim": 32, "intermediate_size": 384},
    "20M": {
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "head_dim": 64,
        "num_attention_heads": 8,
        "intermediate_size": 1536,
        "vocab_size": 4096,
    },
}
CASES = (("0.6M", "float32"), ("20M", "bfloat16"), ("20M", "float32"))
BATCHES = (64, 4)


def cpu_seconds(process_id: int) -> float:
    """CPU time of a server's processes so far."""
    root = psutil.Process(process_id)
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def sample(url: str, name: str, num_requests: int, num_tokens: int, vocabulary: int) -> list[ScoredSequence]:
    source = random.Random(name)
    prompts = [source.choices(range(2, vocabulary), k=source.randint(16, 128)) for _ in range(num_requests)]
    settings = {"temperature": 1.0, "max_new_tokens": num_tokens, "ignore_eos": True}
    body = {"input_ids": prompts, "sampling_params": settings, "return_logprob": True, "cache_salt": name}

    async def ask() -> list[dict]:
        async with new_session() as session:
            return await post(session, f"{url}/generate", body)

    sequences = []
    for i, (prompt, reply) in enumerate(zip(prompts, asyncio.run(ask()), strict=True)):
        tokens = reply["output_ids"]
        logprobs = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        zeros, falses = [0] * len(tokens), [False] * len(tokens)
        sequences.append(
            ScoredSequence(f"{i}", prompt, tokens, logprobs, zeros, falses, source.gauss(0, 1), 0.0)
        )
    return sequences


@contextlib.contextmanager
def both_servers(model: Path, folder: Path, dtype: str) -> Iterator[dict[bool, tuple[str, int]]]:
    with contextlib.ExitStack() as stack:
        yield {
            is_bitwise: stack.enter_context(
                running_server(model, folder / f"log-{is_bitwise}", dtype=dtype, is_bitwise=is_bitwise)
            )
            for is_bitwise in (False, True)
        }


def measure(shape: str, dtype: str, rounds: int, num_tokens: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = {"vocab_size": 24, "max_position_embeddings": 1024, "tie_word_embeddings": True}
        model = write_model(folder / "model", **(sizes | SHAPES[shape]))
        vocabulary = int((sizes | SHAPES[shape])["vocab_size"])
        spent: dict[tuple[str, bool], list[float]] = {}
        batches: dict[bool, list[ScoredSequence]] = {}
        with both_servers(model, folder, dtype) as servers:
            for i in range(rounds + 1):
                for size in BATCHES:
                    for is_bitwise, (url, process_id) in servers.items():
                        before = cpu_seconds(process_id)
                        found = sample(url, f"{i} {size}", size, num_tokens, vocabulary)
                        # The first round fills caches.
                        if i:
                            key = (f"decode {size}", is_bitwise)
                            spent.setdefault(key, []).append(cpu_seconds(process_id) - before)
                        if size == BATCHES[0]:
                            batches[is_bitwise] = found
        differences = {}
        learners = {}
        for is_bitwise, sequences in batches.items():
            section = {"dtype": dtype, "bitwise_agreement": is_bitwise}
            learner = learners[is_bitwise] = make_learner(model, model=section)
            micros = rank_micro_batches(
                Batch(0, 1.0, sequences), budget_tokens=8192, rank=0, num_ranks=1, kernel=learner.kernel
            )
            pairs = zip(learner.passes.logprobs(learner.parallel_chunks, micros, 1.0), micros, strict=True)
            differences[is_bitwise] = max((a - micro.behavior).abs().max().item() for a, micro in pairs)
        for _ in range(rounds):
            for is_bitwise, learner in learners.items():
                before = time.process_time()
                learner.step(Batch(0, 1.0, batches[is_bitwise]))
                spent.setdefault(("step", is_bitwise), []).append(time.process_time() - before)
    for what in (*(f"decode {size}" for size in BATCHES), "step"):
        off, on = (statistics.median(spent[what, is_bitwise]) for is_bitwise in (False, True))
        print(f"{shape:5} {dtype:9} {what:9}  {off:7.2f} s  {on:7.2f} s  x {on / off:.2f}", flush=True)
    print(f"{shape:5} {dtype:9} log-probs  {differences[False]:.1e}    {differences[True]:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What model.bitwise_agreement costs.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    arguments = parser.parse_args()
    ranks.start(threads=1, seed=0)
    print("model dtype     what         ordinary   bitwise", flush=True)
    for shape, dtype in CASES:
        measure(shape, dtype, arguments.rounds, arguments.tokens)
    ranks.stop()


if __name__ == "__main__":
    main()
