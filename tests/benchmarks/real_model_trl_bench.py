"""Seconds per step on a real model: `asyncrl train` against TRL's GRPOTrainer, on the same cores.

    python tests/benchmarks/real_model_trl_bench.py [--model FOLDER_OR_GGUF] [--steps 8] [KEY=VALUE ...]

Same model, prompts, numbers of trajectories, longest responses and steps. few_shot: 16 x 8 trajectories of at
most 5 tokens after prompts of about 30, each with two solved sums of its own; fixed_shots: the same, but all
prompts show the same two. long: 4 x 8 of at most 256 tokens. Both sides compute in the type that
`model.dtype: auto` means here: bfloat16 on a CPU that multiplies its matrices, else float32. Our rewards are
random numbers: a group without signal would cost us a forward pass alone, where TRL trains all alike. What is
timed is the median step, on our side without the first two and those at the end, for which servers have
nothing left to generate. KEY=VALUE changes the recipe of both sides. The default model is that of
recipes/r1_zero_smollm2_cpu.yaml; where it is not made yet, it says so.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml
from training_runs import SMOLLM2, SMOLLM2_RECIPE, Run, train
from trl_runs import run_trl

from asyncrl.launch.prepare import fetch_model
from asyncrl.model.dtype import find_dtype
from asyncrl.model.folder import check_model_folder
from asyncrl.model.source import model_folder
from asyncrl.recipe.file import dump_recipe, load_recipe

WARM_STEPS = 2
MAX_STALENESS = 2
VERIFIER = """import random

from verifiers.verdict import Outcome, Verdict


class RandomScore:
    def parse_reference(self, raw):
        return raw

    def verify(self, response, reference):
        return Verdict(Outcome.WRONG, random.random())
"""
TARGET = {"few_shot": 10.0, "fixed_shots": 10.0, "long": 4.0}


@dataclass(frozen=True)
class Load:
    num_groups: int
    max_new_tokens: int
    are_shots_fixed: bool = False
    """Whether all prompts show the same solved sums, as a template does."""
    num_trainers: int = 1
    """Processes. Where training outlasts sampling, a second one takes the core that servers leave."""

    def prompt(self, source: random.Random) -> tuple[str, int]:
        """A prompt and its answer."""
        if self.max_new_tokens > 100:
            a, b = source.randrange(100), source.randrange(100)
            return f"Write a long story about a village with {a} houses and {b} trees.\n\n", a + b
        pairs = [(source.randrange(10, 100), source.randrange(10, 100)) for _ in range(3)]
        *shown, (a, b) = pairs
        if self.are_shots_fixed:
            shown = [(58, 37), (23, 45)]
        return "".join(f"{c} + {d} = {c + d}\n" for c, d in shown) + f"{a} + {b} =", a + b


LOADS = {
    "few_shot": Load(16, 5),
    "fixed_shots": Load(16, 5, are_shots_fixed=True),
    "long": Load(4, 256, num_trainers=2),
}


def write_recipe(folder: Path, model: Path, load: Load, num_steps: int) -> Path:
    """A recipe of `load`, its data and its verifier."""
    source = random.Random(0)
    (folder / "random_score.py").write_text(VERIFIER)
    for name, count in (("train", 256), ("heldout", 4)):
        rows = [load.prompt(source) for _ in range(count)]
        verifier = f"{folder}/random_score.py:RandomScore"
        lines = [json.dumps({"prompt": p, "answer": str(a), "verifier": verifier}) for p, a in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    recipe = {
        "name": "real-model",
        "model": {"path": str(model.absolute()), "context_tokens": 512},
        "data": {"train": str(folder / "train.jsonl"), "heldout": str(folder / "heldout.jsonl")},
        "rollout": {
            "groups_per_batch": load.num_groups,
            "samples_per_group": 8,
            "max_new_tokens": load.max_new_tokens,
            "max_staleness": MAX_STALENESS,
        },
        "serving": {"max_total_tokens": 16384, "weight_transport": "distributed"},
        "trainer": {
            "num_processes": load.num_trainers,
            "num_steps": num_steps,
            "learning_rate": 1e-6,
            "tokens_per_micro_batch": 4096,
            "checkpoint_every_steps": 1000,
        },
        "evaluation": {"every_steps": 0, "num_tasks": 4, "samples_per_task": 1},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def bench(
    name: str, model: Path, num_steps: int, num_trl_steps: int, cores: str, overrides: list[str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="real-model-trl-") as temporary:
        path = write_recipe(Path(temporary), model, LOADS[name], num_steps)
        folder = model_folder(fetch_model(load_recipe(path)).model)
        path = write_recipe(Path(temporary), folder, LOADS[name], num_steps)
        recipe = load_recipe(path, overrides)
        path.write_text(dump_recipe(recipe))
        dtype = find_dtype(recipe, check_model_folder(folder)).name
        run = train(path, cores)
        seconds = [row["step_seconds"] for row in steady(run)]
        ours = statistics.median(seconds)
        print(f"{name}: asyncrl {ours:.2f} s per step in {dtype}: {_parts(run)}", flush=True)
        if not num_trl_steps:
            return
        theirs = run_trl(
            path,
            target=2.0,
            max_steps=num_trl_steps,
            cores=tuple(map(int, cores.split(","))),
            dtype=dtype,
            # Two micro-batches of 256-token answers would hold twice the logits of a whole batch of ours.
            sequences_per_micro_batch=8 if name == "long" else None,
        )["seconds_per_step_median"]
    print(
        f"{name}: asyncrl {ours:.2f} s per step, TRL {theirs:.2f} s: {theirs / ours:.1f}x "
        f"(target {TARGET[name]:.0f}x)",
        flush=True,
    )


def steady(run: Run) -> list[dict[str, float]]:
    """Steps beside which servers generate: the last batches were sampled before."""
    return run.steps[WARM_STEPS : -MAX_STALENESS - 1]


def _parts(run: Run) -> str:
    """What a step consisted of, in means over the timed ones."""
    rows = steady(run)
    parts = {
        name: statistics.fmean(row[f"{name}_seconds"] for row in rows)
        for name in ("wait", "train", "publish")
    }
    idle = statistics.fmean(row["rollout_idle_share"] for row in rows)
    mean = statistics.fmean(row["step_seconds"] for row in rows)
    told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items())
    return f"mean {mean:.2f} s: {told}; servers idle {idle:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=SMOLLM2, help="a Hugging Face folder or a GGUF file")
    parser.add_argument("--steps", type=int, default=8, help="of asyncrl")
    parser.add_argument(
        "--trl-steps", type=int, default=4, help="none of them is a warm-up: they are alike; 0: ours alone"
    )
    parser.add_argument("--only", choices=tuple(LOADS))
    parser.add_argument("--cores", default=",".join(map(str, sorted(os.sched_getaffinity(0))[:2])))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the recipe, for both sides")
    arguments = parser.parse_args()
    if not arguments.model.exists():
        print(f"skipped: {arguments.model} is missing. Train by {SMOLLM2_RECIPE} once, or set --model.")
        return
    for name in [arguments.only] if arguments.only else LOADS:
        bench(
            name, arguments.model, arguments.steps, arguments.trl_steps, arguments.cores, arguments.overrides
        )


if __name__ == "__main__":
    main()
