"""A step of supervised fine-tuning against plain transformers + AdamW: learned tokens per CPU second.

    python tests/benchmarks/sft_bench.py [--rounds N] [--trl FOLDER]

All take the same steps in turn in this one process, on the same rows, in float32 on one thread. Plain
transformers sorts the rows by length and pads each micro-batch of at most the same tokens to its longest row;
its loss is the same mean over learned tokens. With --trl TRL's SFTTrainer takes them, too, padded and packed
(trl_sft.py). CPU time does not count what other processes take. Figures and ratios are medians over rounds;
the last column compares the losses of all steps.
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
SHORTEST_PACKED = 512
"""Tokens of the sequences that TRL packs, at least."""
Step = Callable[[Batch], tuple[float, float]]
"""A batch -> its loss, and the CPU seconds of the step."""
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


def plain_step(folder: Path) -> Step:
    model = reference_model(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)

    def step(batch: Batch) -> float:
        count, total = sum(row.num_sampled() for row in batch.sequences), 0.0
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
            total += loss.item() / count
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return timed(step)


def own_step(folder: Path) -> Step:
    from fakes.learners import make_learner

    learner = make_learner(folder, stage="sft", trainer={"tokens_per_micro_batch": BUDGET})
    return timed(lambda batch: learner.step(batch)["loss"])


def timed(step: Callable[[Batch], float]) -> Step:
    def found(batch: Batch) -> tuple[float, float]:
        begin = time.process_time()
        loss = step(batch)
        return loss, time.process_time() - begin

    return found


def padded(rows: list[ScoredSequence]) -> Iterator[list[ScoredSequence]]:
    """Micro-batches of at most BUDGET tokens, padding included, of rows of like length."""
    part: list[ScoredSequence] = []
    for row in sorted(rows, key=lambda row: len(row.prompt_tokens + row.response_tokens)):
        if part and (len(part) + 1) * len(row.prompt_tokens + row.response_tokens) > BUDGET:
            yield part
            part = []
        part.append(row)
    yield part


def measure(name: str, rounds: int, folder: Path, *, has_trl: bool) -> str:
    sizes, count, shortest, longest, answers = LOADS[name]
    write_model(folder, "Qwen3", num_attention_heads=4, **SIZES | sizes)
    steps = {"asyncrl": own_step(folder), "transformers": plain_step(folder)}
    if has_trl:
        from trl_sft import TrlSteps

        # Longer sequences cost it more: their attention is dense, with a mask.
        most = max(SHORTEST_PACKED, 2 * longest)
        steps["TRL, padded"] = TrlSteps(folder, VOCABULARY, packs=False, longest=most).step
        steps["TRL, packed"] = TrlSteps(folder, VOCABULARY, packs=True, longest=most).step
    speeds: dict[str, list[float]] = {key: [] for key in steps}
    largest = 0.0
    for number in range(rounds + 1):
        batch = make_batch(count, shortest, longest, answers, number)
        losses = []
        for key, step in steps.items():
            loss, seconds = step(batch)
            losses.append(loss)
            # The first round builds what later ones find.
            if number:
                speeds[key].append(sum(row.num_sampled() for row in batch.sequences) / seconds)
        largest = max(largest, *(abs(loss - losses[0]) for loss in losses))
    own, *others = speeds.values()
    shown = [f"{statistics.median(own):,.0f}"]
    for other in others:
        ratio = statistics.median(a / b for a, b in zip(own, other, strict=True))
        shown.append(f"{statistics.median(other):,.0f} (**{ratio:.2f}x**)")
    return f"| {name} | {' | '.join(shown)} | {largest:.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", action="append", help="begins a row's name; may be given again")
    parser.add_argument("--trl", type=Path, metavar="FOLDER", help="where trl and accelerate were installed")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ranks.start(threads=1, seed=0)
    has_trl = arguments.trl is not None and finds_trl(arguments.trl)
    columns = ["rows", "asyncrl", "transformers", *(["TRL, padded", "TRL, packed"] if has_trl else [])]
    print(f"| {' | '.join(columns)} | largest difference of losses |\n|{'---|' * (len(columns) + 1)}")
    for name in LOADS:
        if arguments.load and not name.startswith(tuple(arguments.load)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            print(measure(name, arguments.rounds, Path(folder), has_trl=has_trl), flush=True)
    ranks.stop()


def finds_trl(folder: Path) -> bool:
    # Behind the locked packages, whose transformers it then uses.
    sys.path.append(str(folder))
    from trl_sft import is_installed

    if not is_installed():
        print(f"{folder} has no trl and accelerate: their columns are left out.", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    main()
