"""What staleness does to learning, with and without correction: `make ablation`.

    python tests/benchmarks/ablation.py [--results FILE] [--seeds 0,1,2] [--cores 0,1]

Trains the arithmetic recipe once per cell (staleness x correction) and seed; a cell that the results file
already holds is not run again. Every batch is as stale as the cell says (stalest.py). Prints a Markdown table
and draws a figure next to the results.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asyncrl.launch.prepare import prepare
from asyncrl.observe.metrics.metrics_file import written_rows
from asyncrl.recipe.file import load_recipe

TRAIN = Path(__file__).with_name("stalest.py")
RECIPE = Path("recipes/r1_zero_arithmetic_cpu.yaml")
STALENESS = (0, 4, 8, 16)
CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {"algorithm.importance_weight": "none"},
    "truncated": {"algorithm.importance_weight": "truncated", "algorithm.importance_cap": 2.0},
    "masked": {"algorithm.importance_weight": "masked"},
    "decoupled": {"algorithm.importance_weight": "truncated", "algorithm.importance_cap": 100.0},
}
"""In all of them PPO clips around the policy before the step. decoupled (Hilton et al. 2022) weighs by the
whole ratio of that policy to the one that sampled; its cap is out of reach."""
COMMON = {
    # With one step per batch the clip would never bind.
    "trainer.optimizer_steps_per_batch": 2,
    "algorithm.clip_high": 0.2,
    "evaluation.every_steps": 0,
    "evaluation.samples_per_task": 1,
    "evaluation.num_tasks": 256,
    "trainer.num_steps": 40,
}
LAST_STEPS = 5
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Number of values -> two-sided 95% quantile of Student's t for their mean."""


@dataclass(frozen=True)
class Result:
    """One run."""

    staleness: int
    correction: str
    seed: int
    accuracy: float
    """Greedy, on held-out tasks, after training."""
    reward: float
    """Mean of the last steps."""
    staleness_mean: float
    """As trained, over the second half of the run."""
    seconds: float


def run_cell(staleness: int, correction: str, seed: int, cores: str) -> Result:
    """Trains once, in a folder of its own."""
    keys = COMMON | CORRECTIONS[correction] | {"rollout.max_staleness": staleness, "seed": seed}
    began = time.monotonic()
    steps, after = train([str(TRAIN), "train", str(RECIPE)], keys, cores)
    return Result(
        staleness,
        correction,
        seed,
        after["greedy_accuracy"],
        statistics.fmean(row["reward_mean"] for row in steps[-LAST_STEPS:]),
        statistics.fmean(row["staleness_mean"] for row in steps[len(steps) // 2 :]),
        time.monotonic() - began,
    )


def train(
    program: list[str], keys: dict[str, Any], cores: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of metrics.jsonl, the steps and the last evaluation, of a run in a folder of its own.

    `program` is what the interpreter runs; `keys` are the recipe's that change.
    """
    with tempfile.TemporaryDirectory(prefix="ablation-") as folder:
        command = ["taskset", "-c", cores, sys.executable, *program, f"run_folder={folder}/run"]
        command += [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}")
        rows = written_rows(Path(folder, "run", "metrics.jsonl"))
    (after,) = [row for row in rows if row["kind"] == "eval" and row["when"] == "after"]
    return [row for row in rows if row["kind"] == "step"], after


def read_results(path: Path) -> list[Result]:
    """Those of earlier invocations."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def interval(values: list[float]) -> tuple[float, float]:
    """(mean, half width of its 95% interval by Student's t); no width for a single value."""
    if len(values) < 2:
        return values[0], math.nan
    width = STUDENT_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), width


def cells(results: list[Result]) -> Iterator[tuple[int, str, list[Result]]]:
    for staleness, correction in itertools.product(STALENESS, CORRECTIONS):
        found = [r for r in results if (r.staleness, r.correction) == (staleness, correction)]
        if found:
            yield staleness, correction, found


def table(results: list[Result]) -> str:
    """Markdown: greedy accuracy and reward of the last steps, with 95% intervals over seeds."""
    lines = ["| staleness | correction | as trained | held-out accuracy | reward of the last 5 steps |"]
    lines.append("|---|---|---|---|---|")
    for staleness, correction, found in cells(results):
        accuracy, reward = (interval([getattr(r, key) for r in found]) for key in ("accuracy", "reward"))
        lag = statistics.fmean(r.staleness_mean for r in found)
        lines.append(
            f"| {staleness} | {correction} | {lag:.1f} | "
            f"{100 * accuracy[0]:.1f} ± {100 * accuracy[1]:.1f}% | {reward[0]:.3f} ± {reward[1]:.3f} |"
        )
    return "\n".join(lines)


def draw(results: list[Result], path: Path) -> None:
    """Accuracy and reward against staleness, a line per correction."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for shift, correction in enumerate(CORRECTIONS):
        found = [(s, group) for s, c, group in cells(results) if c == correction]
        places = [s + 0.25 * (shift - 1.5) for s, _ in found]
        for axis, key in zip(axes, ("accuracy", "reward"), strict=True):
            points = [interval([getattr(r, key) for r in group]) for _, group in found]
            means, widths = [m for m, _ in points], [0.0 if math.isnan(w) else w for _, w in points]
            axis.errorbar(places, means, yerr=widths, marker="o", capsize=3, label=correction)
    for axis, title in zip(axes, ("held-out greedy accuracy", "reward, last 5 steps"), strict=True):
        axis.set(title=title, xlabel="staleness of every batch (versions)", xticks=STALENESS, ylim=(0, 1.05))
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path(".bench/ablation.jsonl"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--cores", default=",".join(map(str, sorted(os.sched_getaffinity(0))[:2])))
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    prepare(load_recipe(RECIPE), RECIPE, [])
    results = read_results(arguments.results)
    done = {(r.seed, r.staleness, r.correction) for r in results}
    seeds = list(map(int, arguments.seeds.split(",")))
    wanted = [cell for cell in itertools.product(seeds, STALENESS, CORRECTIONS) if cell not in done]
    for number, (seed, staleness, correction) in enumerate(wanted, start=1):
        result = run_cell(staleness, correction, seed, arguments.cores)
        results.append(result)
        with arguments.results.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(
            f"{number:2d}/{len(wanted)}  seed {seed}  staleness {staleness:2d}  {correction:10s}  accuracy "
            f"{result.accuracy:.3f}  reward {result.reward:.3f}  {result.seconds:.0f} s",
            flush=True,
        )
    print(table(results))
    figure = arguments.results.with_suffix(".svg")
    draw(results, figure)
    print(f"figure: {figure}")


if __name__ == "__main__":
    main()
