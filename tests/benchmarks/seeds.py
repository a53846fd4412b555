"""A recipe on several seeds, with intervals: `make seeds RECIPE=recipes/r1_zero_smollm2_cpu.yaml`.

    python tests/benchmarks/seeds.py RECIPE [--seeds 0,1,2] [--folder .bench/seeds] [section.key=value ...]

Runs `asyncrl train` once per seed, one after the other, each in a folder that stays: a complete seed is not
run again, one that was cut resumes. The curves of a recipe as shipped go to curves.jsonl. Prints a Markdown
table, curves, the largest dip of each, and three greedy answers to held-out tasks before and after training.
Ends with 1 unless every seed doubled its accuracy and reached TARGET.
"""

import argparse
import functools
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asyncrl.launch.preflight import read_inputs
from asyncrl.launch.prepare import fetch_model
from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder
from asyncrl.run.metrics_file import written_rows
from tests.benchmarks.curves import curve_of, keep
from tests.benchmarks.kept import markdown
from tests.benchmarks.paired import interval

TARGET = 0.8
"""Held-out greedy accuracy after training."""
NUM_ANSWERS = 3
SOLVED = 0.95
"""Greedy accuracy from which on a fall is a dip."""


@dataclass(frozen=True)
class SeedRun:
    """What one run measured; its rows are those of metrics.jsonl."""

    seed: int
    before: dict[str, Any]
    during: list[dict[str, Any]]
    after: dict[str, Any]
    minutes: float
    """Of the command, start-up and evaluations included."""

    def is_learned(self) -> bool:
        accuracy = self.after["greedy_accuracy"]
        return bool(accuracy >= TARGET and accuracy >= 2 * self.before["greedy_accuracy"])


def train(recipe: Path, seed: int, folder: Path, overrides: list[str]) -> None:
    """Runs the seed in `folder` unless it is complete; minutes of earlier tries count."""
    times = folder.with_suffix(".minutes")
    if times.exists() and "after" in {row["when"] for row in read_evaluations(folder)}:
        return
    earlier = float(times.read_text()) if times.exists() else 0.0
    began = time.monotonic()
    command = [sys.executable, "-m", "asyncrl.commands.main", "train", str(recipe), f"run_folder={folder}"]
    done = subprocess.run([*command, f"seed={seed}", *overrides], check=False)
    times.write_text(str(earlier + (time.monotonic() - began) / 60))
    if done.returncode != 0:
        raise SystemExit(f"Seed {seed} ended with {done.returncode}. The same command resumes it.")


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    return [row for row in written_rows(folder / "metrics.jsonl") if row["kind"] == "eval"]


def read_run(seed: int, folder: Path) -> SeedRun:
    evaluations = read_evaluations(folder)
    before = next(row for row in evaluations if row["when"] == "before")
    during = [row for row in evaluations if row["when"] == "during"]
    minutes = float(folder.with_suffix(".minutes").read_text())
    return SeedRun(seed, before, during, evaluations[-1], minutes)


def table(runs: list[SeedRun]) -> str:
    """Markdown. The interval of a seed is over held-out tasks, that of the mean over seeds (Student's t)."""
    k = runs[0].after["k"]
    heads = ("seed", "greedy before", "after", f"avg@{k} before", "after", "response tokens", "minutes")
    lines: list[tuple[object, ...]] = []
    for run in runs:
        cells = [_share(row, name) for name in ("greedy", "avg") for row in (run.before, run.after)]
        lengths = " -> ".join(f"{row['response_tokens_mean']:.1f}" for row in (run.before, run.after))
        lines.append((run.seed, *cells, lengths, f"{run.minutes:.1f}"))
    if len(runs) == 1:
        return markdown(heads, lines)
    means = [
        interval([row[name] for row in rows])
        for name in ("greedy_accuracy", "avg_at_k")
        for rows in ([run.before for run in runs], [run.after for run in runs])
    ]
    cells = [f"{100 * mean:.1f} ± {100 * width:.1f}%" for mean, width in means]
    minutes = statistics.fmean(run.minutes for run in runs)
    return markdown(heads, [*lines, ("mean", *cells, "", f"{minutes:.1f}")])


def dip(run: SeedRun) -> str:
    """The largest fall of greedy accuracy below what it had reached, from SOLVED on, with the interval of the
    lowest value over tasks."""
    begins = next((i for i, row in enumerate(run.during) if row["greedy_accuracy"] >= SOLVED), None)
    if begins is None:
        return f"seed {run.seed}: never at {100 * SOLVED:.0f}%"
    best, largest, worst = 0.0, -1.0, run.during[begins]
    for row in run.during[begins:]:
        best = max(best, row["greedy_accuracy"])
        if best - row["greedy_accuracy"] > largest:
            largest, worst = best - row["greedy_accuracy"], row
    return (
        f"seed {run.seed}: {100 * SOLVED:.0f}% from step {run.during[begins]['step']} on, largest dip "
        f"{100 * largest:.1f} points, to {_share(worst, 'greedy')} at step {worst['step']}, of "
        f"{len(run.during) - begins} evaluations"
    )


def _share(row: dict[str, Any], name: str) -> str:
    value = row["greedy_accuracy" if name == "greedy" else "avg_at_k"]
    return f"{100 * value:.0f}% ({100 * row[f'{name}_low']:.0f}-{100 * row[f'{name}_high']:.0f})"


def curve(run: SeedRun) -> str:
    points = (f"{row['step']}: {100 * row['greedy_accuracy']:.0f}%" for row in (run.before, *run.during))
    return f"seed {run.seed}, greedy held-out by step: {', '.join(points)}"


def answers(recipe: Recipe, checkpoint: Path) -> str:
    """Markdown: the first held-out tasks, answered greedily by the base model and by the checkpoint."""
    tasks = read_inputs(recipe)[0].heldout_tasks[:NUM_ANSWERS]
    length = recipe.rollout.max_new_tokens
    folders = (model_folder(recipe.model), checkpoint)
    before, after = ([_generate(folder, task.prompt, length) for task in tasks] for folder in folders)
    shown = zip((task.prompt.splitlines()[-1] for task in tasks), before, after, strict=True)
    lines = ([f"`{text}`" for text in texts] for texts in shown)
    return markdown(("held-out prompt, last line", "before", "after"), lines)


@functools.cache
def _load(folder: Path) -> tuple[Any, Any]:
    # Slow to import, and the tests of this file generate nothing.
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)


def _generate(folder: Path, prompt: str, length: int) -> str:
    """The greedy response, up to the end of its first line."""
    tokenizer, model = _load(folder)
    tokens = tokenizer(prompt, return_tensors="pt")
    out = model.generate(**tokens, max_new_tokens=length, do_sample=False)
    text: str = tokenizer.decode(out[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True)
    return text.partition("\n")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--folder", type=Path, default=Path(".bench/seeds"))
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    # Overrides may follow options, as the docstring has them.
    arguments = parser.parse_intermixed_args()
    name, runs = arguments.recipe.stem, []
    for seed in map(int, arguments.seeds.split(",")):
        folder = (arguments.folder / f"{name}-{seed}").absolute()
        folder.parent.mkdir(parents=True, exist_ok=True)
        train(arguments.recipe, seed, folder, arguments.overrides)
        runs.append(read_run(seed, folder))
        if not arguments.overrides:
            keep(curve_of(name, seed, read_evaluations(folder)))
        print(table(runs), flush=True)
    print("\n".join(map(curve, runs)))
    print("\n".join(map(dip, runs)))
    recipe = fetch_model(load_recipe(arguments.recipe, arguments.overrides))
    checkpoint = RunFolder(arguments.folder / f"{name}-{runs[0].seed}").newest_export()
    assert checkpoint is not None, "a complete run has exported its last checkpoint"
    print(answers(recipe, checkpoint))
    learned = all(run.is_learned() for run in runs)
    print(f"every seed doubled and reached {100 * TARGET:.0f}%: {'yes' if learned else 'NO'}")
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
