"""Adapters of several ranks against all weights, on several seeds: held-out loss after supervised steps.

    python tests/benchmarks/lora_ranks.py MODEL TRAIN HELDOUT --out FILE [--ranks 0,1,8,32] [--seeds 0,1,2]

MODEL is a folder or a GGUF file, TRAIN and HELDOUT are JSONL files of "question" and "answer"; nothing of
them is copied. Rank 0 trains all weights. Each arm of a seed takes the same steps on the same rows in
bfloat16, from the model as it is, at its own learning rate: `--rate` for all weights and RATE_FACTOR times
that for adapters. Runs follow each other in this process, and FILE gets a line of JSON at the end of each: a
run that is in it is not taken again. Then prints a Markdown table with 95% intervals over seeds. CPU seconds
leave out what other processes take.
"""

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import tokenizers
from benchmarks.kept import markdown
from benchmarks.paired import interval
from fakes.learners import make_learner
from fakes.recipes import make_recipe

from asyncrl.launch.prepare import fetch_model
from asyncrl.model.source import model_folder
from asyncrl.recipe.sections.model import RATE_FACTOR
from asyncrl.records import Batch, ScoredSequence
from asyncrl.tasks.demonstration import of_tokens
from asyncrl.trainer.ranks import ranks

BUDGET = 2048
"""Tokens of a micro-batch."""


def read_rows(path: Path, folder: Path, longest: int) -> list[ScoredSequence]:
    """Rows of at most `longest` tokens, question as prompt and answer as response."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = []
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        prompt, response = (
            tokenizer.encode(text, add_special_tokens=False).ids
            for text in (f"Question: {row['question']}\nAnswer: ", f"{row['answer']}\n")
        )
        if len(prompt) + len(response) <= longest:
            found.append(of_tokens(prompt, response, None).sequence(f"{i:08d}-00"))
    return found


def train(
    folder: Path,
    rank: int,
    seed: int,
    arguments: argparse.Namespace,
    rows: list[ScoredSequence],
    heldout: list[ScoredSequence],
) -> dict[str, Any]:
    """One run: its losses and what it cost."""
    begin = time.process_time()
    learner = make_learner(
        folder,
        stage="sft",
        seed=seed,
        model={"dtype": "bfloat16", **({"lora": {"rank": rank}} if rank else {})},
        trainer={
            "learning_rate": arguments.rate * (RATE_FACTOR if rank else 1.0),
            "tokens_per_micro_batch": BUDGET,
        },
    )
    before = learner.measure(Batch(0, 1.0, heldout))["loss"]
    started = time.process_time()
    # The same rows in every arm of a seed.
    chosen = random.Random(seed).sample(rows, arguments.steps * arguments.rows)
    losses = []
    for step in range(arguments.steps):
        part = chosen[step * arguments.rows : (step + 1) * arguments.rows]
        losses.append(learner.step(Batch(step, 1.0, part))["loss"])
    stepped = time.process_time()
    after = learner.measure(Batch(arguments.steps, 1.0, heldout))["loss"]
    tokens = sum(len(row.prompt_tokens) + len(row.response_tokens) for row in chosen)
    return {
        "rank": rank,
        "seed": seed,
        "before": before,
        "after": after,
        "losses": losses,
        "tokens": tokens,
        "step_seconds": (stepped - started) / arguments.steps,
        "seconds": time.process_time() - begin,
    }


def table(runs: list[dict[str, Any]]) -> str:
    """By rank: held-out losses, their fall with its interval over seeds, and CPU seconds of a step."""
    lines = []
    for rank in sorted({run["rank"] for run in runs}):
        own = sorted((run for run in runs if run["rank"] == rank), key=lambda run: run["seed"])
        mean, width = interval([run["before"] - run["after"] for run in own])
        after = ", ".join(f"{run['after']:.4f}" for run in own)
        seconds = statistics.median(run["step_seconds"] for run in own)
        figures = f"{own[0]['before']:.4f}", after, f"{mean:.4f} +- {width:.4f}", f"{seconds:.1f}"
        lines.append((rank or "all weights", len(own), *figures))
    heads = ("rank", "seeds", "held-out loss before", "after, by seed", "fall", "CPU seconds of a step")
    return markdown(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("train", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", default="0,1,8,32")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rows", type=int, default=8, help="of a step")
    parser.add_argument("--num-heldout", type=int, default=24)
    parser.add_argument("--longest", type=int, default=160, help="tokens of a row")
    parser.add_argument("--rate", type=float, default=2e-5, help="learning rate of all weights")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = model_folder(fetch_model(make_recipe(arguments.model)).model)
    rows = read_rows(arguments.train, folder, arguments.longest)
    heldout = read_rows(arguments.heldout, folder, arguments.longest)[: arguments.num_heldout]
    ranks.start(threads=1, seed=0)
    done = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    runs = [json.loads(line) for line in done]
    # Seed by seed: a run that is cut has whole seeds.
    for seed in map(int, arguments.seeds.split(",")):
        for rank in map(int, arguments.ranks.split(",")):
            if any((run["rank"], run["seed"]) == (rank, seed) for run in runs):
                continue
            runs.append(train(folder, rank, seed, arguments, rows, heldout))
            gc.collect()
            with arguments.out.open("a") as file:
                file.write(f"{json.dumps(runs[-1])}\n")
            print(runs[-1], flush=True)
    ranks.stop()
    print(table(runs))


if __name__ == "__main__":
    main()
