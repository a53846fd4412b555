"""The trainer on one thread against plain transformers + AdamW: step time, memory.

    python tests/benchmarks/trainer_bench.py [--quick]

All steps of a row are taken in turn in this one process, on the same batches; a figure is the best round, the
ratio is the median over rounds. Plain transformers pads to the longest sequence, as trainers do that have no
packing; it computes the same loss (truncated importance weight x PPO clip).
"""

import argparse
import dataclasses
import os
import random
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from fakes.models import reference_model, write_model
from fakes.recipes import make_recipe

from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.ranks import ranks

VOCABULARY = 24
Step = Callable[[Batch], object]


@dataclass(frozen=True)
class Load:
    name: str
    sizes: dict[str, int]
    prompt_tokens: int
    shortest: int
    longest: int
    num_groups: int = 16
    group_size: int = 8


SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "head_dim": 32, "intermediate_size": 384}
MEDIUM = {"hidden_size": 256, "num_hidden_layers": 6, "head_dim": 64, "intermediate_size": 768}
LARGE = {"hidden_size": 512, "num_hidden_layers": 6, "head_dim": 128, "intermediate_size": 1536}
LOADS = (
    Load("0.6 M, 6 to 32 tokens", SMALL, 8, 6, 32),
    Load("0.6 M, 10 to 500 tokens", SMALL, 40, 10, 500),
    Load("5 M, 6 to 32 tokens", MEDIUM, 8, 6, 32),
    Load("19 M, 6 to 32 tokens", LARGE, 8, 6, 32),
)


def make_batch(load: Load, step: int) -> Batch:
    """Lengths are log-uniform, so that the long ones are few."""
    source = random.Random(step)
    sequences = []
    for group in range(load.num_groups):
        prompt = [source.randrange(VOCABULARY) for _ in range(load.prompt_tokens)]
        for member in range(load.group_size):
            length = round(load.shortest * (load.longest / load.shortest) ** source.random())
            sequences.append(
                ScoredSequence(
                    sequence_id=f"{group}-{member}",
                    prompt_tokens=prompt,
                    response_tokens=[source.randrange(VOCABULARY) for _ in range(length)],
                    behavior_logprobs=[-3.2 + 0.3 * source.random() for _ in range(length)],
                    token_versions=[step] * length,
                    are_continued=[False] * length,
                    advantage=source.gauss(0, 1),
                    reward=0.0,
                )
            )
    return Batch(step, 1.0, sequences)


def half_silent(batch: Batch) -> Batch:
    """Every second group without an advantage, as if all its rewards were equal."""
    sequences = [
        dataclasses.replace(s, advantage=s.advantage * (int(s.sequence_id.partition("-")[0]) % 2))
        for s in batch.sequences
    ]
    return dataclasses.replace(batch, sequences=sequences)


def plain_step(folder: Path) -> Step:
    """One step of transformers and torch alone."""
    model = reference_model(folder).train()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95))

    def step(batch: Batch) -> None:
        size = max(len(s.prompt_tokens) + len(s.response_tokens) for s in batch.sequences)
        tokens = torch.zeros(len(batch.sequences), size, dtype=torch.long)
        behavior, mask = (torch.zeros(len(batch.sequences), size - 1) for _ in range(2))
        for i, s in enumerate(batch.sequences):
            first, last = len(s.prompt_tokens), len(s.prompt_tokens) + len(s.response_tokens)
            tokens[i, :last] = torch.tensor(s.prompt_tokens + s.response_tokens)
            behavior[i, first - 1 : last - 1] = torch.tensor(s.behavior_logprobs)
            mask[i, first - 1 : last - 1] = 1
        advantages = torch.tensor([s.advantage for s in batch.sequences])[:, None]
        # Right padding under a causal mask: no position that counts sees any of it.
        logits = model(tokens).logits[:, :-1]
        current = torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        weights = (current.detach() - behavior).exp().clamp(max=2)
        ratio = (current - current.detach()).exp()
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        (-(weights * surrogate * mask).sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()

    return step


def make_learner(folder: Path, **algorithm: object):
    # Imported late, after Megatron's warnings of missing CUDA packages are turned off.
    from asyncrl.model.folder import check_model_folder
    from asyncrl.trainer.parts.table import build_learner

    learner = build_learner(check_model_folder(folder), make_recipe(folder, algorithm=algorithm))
    learner.load_base()
    return learner


def in_turn(steps: dict[str, Step], load: Load, num_rounds: int) -> dict[str, list[float]]:
    """Seconds of each step per round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(num_rounds + 1):
        batch = make_batch(load, round_number)
        for name, step in steps.items():
            begin = time.perf_counter()
            step(batch)
            seconds[name].append(time.perf_counter() - begin)
    return {name: values[1:] for name, values in seconds.items()}


def ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def bench_steps(load: Load, folder: Path, num_rounds: int) -> None:
    write_model(
        folder,
        "Qwen3",
        **load.sizes,
        vocab_size=VOCABULARY,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
    )
    spared = make_learner(folder)
    steps = {
        "plain": plain_step(folder),
        "ours": make_learner(folder).step,
        "without TIS": make_learner(folder, importance_weight="none").step,
        "half": lambda batch: spared.step(half_silent(batch)),
    }
    seconds = in_turn(steps, load, num_rounds)
    tokens = sum(len(s.response_tokens) for s in make_batch(load, num_rounds).sequences)
    best = {name: min(values) for name, values in seconds.items()}
    row = [load.name, best["plain"], best["ours"], tokens / best["ours"]]
    row += [ratio(seconds["plain"], seconds["ours"]), ratio(seconds["ours"], seconds["without TIS"])]
    row.append(ratio(seconds["half"], seconds["ours"]))
    print("{:26s} {:9.3f} s {:9.3f} s {:8.0f} tok/s {:10.2f} x {:8.3f} {:8.3f}".format(*row))


def bench_logprobs(num_tokens: int = 1500, vocabulary: int = 151_936, hidden_size: int = 64) -> None:
    """Peak memory and time of log-probs, entropies and their gradient: in chunks, and with full logits."""
    from asyncrl.trainer.network.logprobs import output_logprobs
    from asyncrl.trainer.network.output_kernels import token_logprobs

    def chunked(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> None:
        found, entropies = output_logprobs(hidden, weight, targets, 1.0, vocab_size=vocabulary)
        (found.sum() + entropies.sum()).backward()

    def full(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> None:
        found, entropies = token_logprobs(torch.nn.functional.linear(hidden, weight), targets, 1.0)
        (found.sum() + entropies.sum()).backward()

    def run(way: Callable[..., None]) -> None:
        hidden = torch.randn(num_tokens, hidden_size, requires_grad=True)
        weight = torch.randn(vocabulary, hidden_size, requires_grad=True)
        way(hidden, weight, torch.zeros(num_tokens, dtype=torch.long))

    nothing, _ = peak_gibibytes(lambda: run(lambda *_: None))
    (less, quick), (more, slow) = (peak_gibibytes(lambda way=way: run(way)) for way in (chunked, full))
    print(
        f"log-probs of {num_tokens} tokens, vocabulary {vocabulary:,}: chunked {less - nothing:.2f} GiB "
        f"and {quick:.1f} s, full logits {more - nothing:.2f} GiB and {slow:.1f} s, "
        f"{(more - nothing) / (less - nothing):.1f} x the memory"
    )


def peak_gibibytes(action: Callable[[], object]) -> tuple[float, float]:
    """(largest resident memory, seconds) of a forked process that does only this."""
    begin = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        action()
        os._exit(0)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, f"the forked process ended with {status}"
    return usage.ru_maxrss / 2**20, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds: a smoke test, not a measurement")
    num_rounds = 2 if parser.parse_args().quick else 7
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()
    ranks.start(threads=1, seed=0)
    header = ("128 sequences a step", "plain", "ours", "ours", "plain/ours", "TIS/none", "half/all")
    print("{:26s} {:>11s} {:>11s} {:>14s} {:>12s} {:>8s} {:>8s}".format(*header))
    with tempfile.TemporaryDirectory() as temporary:
        for i, load in enumerate(LOADS):
            bench_steps(load, Path(temporary) / str(i), num_rounds)
    bench_logprobs()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process, plain models included: {peak:.2f} GiB")
    ranks.stop()


if __name__ == "__main__":
    main()
