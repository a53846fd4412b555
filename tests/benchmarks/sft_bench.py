"""A step of supervised fine-tuning against plain transformers + AdamW: learned tokens per CPU second.

    python tests/benchmarks/sft_bench.py [--rounds N]

Both take the same steps in turn in this one process, on the same rows, in float32 on one thread. Plain
transformers sorts the rows by length and pads each micro-batch of at most the same tokens to its longest row,
as trainers do that have no packing; its loss is the same mean over learned tokens. CPU time does not count
what other processes take. A figure is the best round, the ratio the median over rounds.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from fakes.models import reference_model, write_model

from asyncrl.records import Batch, ScoredSequence
from asyncrl.tasks.demonstration import of_tokens
from asyncrl.trainer.ranks import ranks

VOCABULARY, BUDGET = 512, 4096
SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": 1024, "num_key_value_heads": 2}
SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "head_dim": 32, "intermediate_size": 384}
MEDIUM = {"hidden_size": 256, "num_hidden_layers": 6, "head_dim": 64, "intermediate_size": 768}
LOADS = {
    "0.8 M, 32 rows of 20 to 60 tokens": (SMALL, 32, 20, 60, 1),
    "0.8 M, 32 rows of 20 to 600 tokens": (SMALL, 32, 20, 600, 1),
    "5 M, 32 rows of 20 to 300 tokens": (MEDIUM, 32, 20, 300, 1),
    "5 M, 8 prompts of 150 tokens, 4 answers each": (MEDIUM, 32, 20, 150, 4),
}


def make_batch(count: int, shortest: int, longest: int, answers: int, step: int) -> Batch:
    """Rows of a prompt, a third of its longest row, and a response; `answers` rows in turn share a prompt."""
    source, rows = random.Random(step), list[ScoredSequence]()
    for i in range(count):
        if i % answers == 0:
            size = longest if answers > 1 else max(4, shortest // 3)
            prompt = [source.randrange(VOCABULARY) for _ in range(size)]
        response = [source.randrange(VOCABULARY) for _ in range(source.randint(shortest, longest))]
        rows.append(of_tokens(prompt, response, None).sequence(f"{i:08d}-00"))
    return Batch(step, 1.0, rows)


def plain_step(model: torch.nn.Module) -> Callable[[Batch], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)

    def step(batch: Batch) -> None:
        count = sum(row.num_sampled() for row in batch.sequences)
        optimizer.zero_grad()
        for rows in padded(batch.sequences):
            longest = max(len(row.prompt_tokens + row.response_tokens) for row in rows)
            tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
            labels, mask = torch.full_like(tokens, -100), torch.zeros_like(tokens)
            for place, row in enumerate(rows):
                whole = torch.tensor(row.prompt_tokens + row.response_tokens)
                tokens[place, : len(whole)], mask[place, : len(whole)] = whole, 1
                labels[place, len(row.prompt_tokens) : len(whole)] = whole[len(row.prompt_tokens) :]
            logits = model(input_ids=tokens, attention_mask=mask).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
            (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def padded(rows: list[ScoredSequence]) -> Iterator[list[ScoredSequence]]:
    """Micro-batches of at most BUDGET tokens, padding included, of rows of like length."""
    part: list[ScoredSequence] = []
    for row in sorted(rows, key=lambda row: len(row.prompt_tokens + row.response_tokens)):
        if part and (len(part) + 1) * len(row.prompt_tokens + row.response_tokens) > BUDGET:
            yield part
            part = []
        part.append(row)
    yield part


def measure(name: str, rounds: int, folder: Path) -> str:
    from fakes.learners import make_learner

    sizes, count, shortest, longest, answers = LOADS[name]
    write_model(folder, "Qwen3", num_attention_heads=4, **SIZES | sizes)
    learner = make_learner(folder, stage="sft", trainer={"tokens_per_micro_batch": BUDGET})
    steps = {"asyncrl": learner.step, "transformers": plain_step(reference_model(folder).train())}
    speeds: dict[str, list[float]] = {key: [] for key in steps}
    for number in range(rounds + 1):
        batch = make_batch(count, shortest, longest, answers, number)
        for key, step in steps.items():
            begin = time.process_time()
            step(batch)
            seconds = time.process_time() - begin
            # The first round builds what later ones find.
            if number:
                speeds[key].append(sum(row.num_sampled() for row in batch.sequences) / seconds)
    ratio = statistics.median(a / b for a, b in zip(*speeds.values(), strict=True))
    own, plain = (max(found) for found in speeds.values())
    return f"| {name} | {own:,.0f} | {plain:,.0f} | **{ratio:.2f}x** |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ranks.start(threads=1, seed=0)
    print("| rows | asyncrl, tokens per CPU second | transformers | ratio |\n|---|---|---|---|")
    for name in LOADS:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(name, arguments.rounds, Path(folder)), flush=True)
    ranks.stop()


if __name__ == "__main__":
    main()
