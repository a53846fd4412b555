"""Part `real`: a run of a given model, or of random weights in the shape of Qwen2.5-0.5B, on sums.

On one GPU trainer and server share it. It shows that a run works at this size and what it takes, not that the
model learns: there are too few steps for that.
"""

import json
import random
from pathlib import Path
from typing import Any

from fakes.whole_run import WholeRun

from asyncrl.model.folder import read_shape
from asyncrl.model.weights import num_parameters
from tests.benchmarks.acceptance.checks import Checks, Setting, end
from tests.benchmarks.acceptance.models import write_half_billion
from tests.benchmarks.acceptance.runs import check_books, check_mismatch, finish, shown

NUM_STEPS = 8
RUN_SECONDS = 270.0
SMALL_BATCH = {"groups_per_batch": 4, "max_new_tokens": 16}
"""Sizes of a rehearsal."""
VERIFIER = '''"""Sums: 1 for the right one, else half of the share of digits, a signal for random weights."""

import re

from verifiers.verdict import Outcome, Verdict


class Sums:
    def parse_reference(self, raw: object) -> str:
        return str(raw)

    def verify(self, response: str, reference: str) -> Verdict:
        if not response:
            return Verdict(Outcome.NO_ANSWER, 0.0)
        found = re.search(r"\\d+", response)
        if found is not None and found.group() == reference:
            return Verdict(Outcome.CORRECT, 1.0, extracted=reference)
        share = sum(character.isdigit() for character in response) / len(response)
        return Verdict(Outcome.WRONG, 0.5 * share, extracted=response[:20])
'''
FIGURES = {
    "train_seconds": "train {:.2f} s",
    "publish_seconds": "publish {:.2f} s",
    "wait_seconds": "wait {:.2f} s",
    "tokens_per_second": "{:,.0f} trained tokens/s",
    "rollout_tokens_per_second": "{:,.0f} generated tokens/s",
    "mfu": "MFU {:.1%}",
}


class SumsRun(WholeRun):
    """A few hundred sums for any model; written as text, as a base model takes them."""

    def __init__(self, folder: Path, model: Path, **sections: Any) -> None:
        sources = {"train": str(folder / "sums.jsonl"), "heldout": str(folder / "asked.jsonl")}
        super().__init__(folder, model={"path": str(model), "context_tokens": 256}, data=sources, **sections)
        (folder / "sums.py").write_text(VERIFIER)
        source = random.Random(0)
        for name, count in (("sums", 512), ("asked", 32)):
            pairs = [(source.randrange(10, 99), source.randrange(10, 99)) for _ in range(count)]
            rows = [
                {"prompt": f"1+1=2\n20+31=51\n{a}+{b}=", "answer": str(a + b), "verifier": "./sums.py:Sums"}
                for a, b in pairs
            ]
            (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def make_run(setting: Setting, model: Path) -> WholeRun:
    is_shared = setting.num_gpus < 2
    run = SumsRun(
        setting.folder,
        model,
        placement={"colocated": is_shared, "device": setting.device},
        rollout={
            "groups_per_batch": 16 if setting.on_gpu else 4,
            "max_new_tokens": 96 if setting.on_gpu else 16,
        },
        # Beside the trainer's state: 0.8 GB of a model like Qwen2.5-0.5B.
        serving={"max_total_tokens": 65536 if setting.on_gpu else 8192, "max_running_requests": 128},
        trainer={"num_steps": NUM_STEPS, "learning_rate": 1e-6, "checkpoint_every_steps": 4},
        evaluation={"num_tasks": 16, "samples_per_task": 1},
    )
    run.set("model.dtype", setting.dtype)
    return run


def work(checks: Checks, setting: Setting) -> None:
    model = setting.model or write_half_billion(setting.folder / "random", is_small=not setting.on_gpu)
    size = f"{num_parameters(read_shape(model)) / 1e6:,.1f} M parameters"
    origin = f"{model.name}, {size}" if setting.model else f"random weights, {size}"
    advice = "Do not begin a long run: read real/output and real/run/logs, then repeat with --parts real."
    run = make_run(setting, model)
    with checks.row(f"a run of {NUM_STEPS} steps ({origin})", advice) as check:
        seconds = RUN_SECONDS if setting.on_gpu else 10 * RUN_SECONDS
        finish(run, num_steps=NUM_STEPS, seconds=seconds, check=check)
        check.figure = shown(run.steps(), FIGURES)
    with checks.row("log-probs of its server are the trainer's", advice) as check:
        check_mismatch(run, setting, check)
    with checks.row("every token is accounted for", "Run `asyncrl journal` on the run's folder.") as check:
        check_books(run, check)


if __name__ == "__main__":
    end(work)
