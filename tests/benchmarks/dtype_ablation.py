"""16-bit types as test beds of mismatch: each type, with and without truncated importance weights.

    python tests/benchmarks/dtype_ablation.py RECIPE [KEY=VALUE ...] [--seeds 0,1,2] [--dtypes float16]

Trains the recipe once per type, correction and seed; a cell that the results file already holds is not run
again. Prints a Markdown table: KL between the engines on tokens of the trainer's own version, share of
importance weights at their cap, and greedy held-out accuracy, each with its 95% interval over seeds.
"""

import argparse
import itertools
import math
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kept import keep, markdown, read_kept
from paired import interval
from training_runs import train

DTYPES = ("float32", "bfloat16", "float16")
CORRECTIONS: dict[str, Any] = {"none": "none", "truncated": {"name": "truncated", "cap": 2.0}}


@dataclass(frozen=True)
class Result:
    """One run."""

    dtype: str
    correction: str
    seed: int
    mismatch_kl: float
    """Mean over steps."""
    capped_share: float
    """Mean over steps."""
    accuracy: float
    seconds_per_step: float
    """Median."""


def run_cell(dtype: str, correction: str, seed: int, arguments: argparse.Namespace) -> Result:
    """Trains once, in a folder of its own."""
    keys = {"model__dtype": dtype, "seed": seed, "trainer__num_steps": arguments.steps}
    keys |= {"algorithm__importance_weight": CORRECTIONS[correction], "evaluation__every_steps": 0}
    run = train(arguments.recipe, arguments.cores, words=arguments.overrides, **keys)

    def mean(field: str) -> float:
        # A step whose tokens are all stale measures no mismatch.
        values = [row[field] for row in run.steps if row.get(field) is not None]
        return statistics.fmean(values) if values else math.nan

    return Result(
        dtype,
        correction,
        seed,
        mean("mismatch_kl"),
        mean("capped_share"),
        run.accuracy(),
        statistics.median(row["step_seconds"] for row in run.steps),
    )


def table(results: list[Result]) -> str:
    lines = []
    for dtype, correction in itertools.product(DTYPES, CORRECTIONS):
        found = [r for r in results if (r.dtype, r.correction) == (dtype, correction)]
        if found:
            kl, capped, accuracy = (
                interval([getattr(r, field) for r in found])
                for field in ("mismatch_kl", "capped_share", "accuracy")
            )
            seconds = statistics.fmean(r.seconds_per_step for r in found)
            percent = f"{100 * accuracy[0]:.1f} ± {100 * accuracy[1]:.1f}%"
            figures = f"{kl[0]:.1e} ± {kl[1]:.0e}", f"{100 * capped[0]:.2f}%", percent, f"{seconds:.1f}"
            lines.append((dtype, correction, *figures))
    heads = ("dtype", "correction", "mismatch KL", "capped share", "held-out accuracy", "s per step")
    return markdown(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--results", type=Path, default=Path(".bench/dtype_ablation.jsonl"))
    parser.add_argument("--cores", default=",".join(map(str, sorted(os.sched_getaffinity(0))[:2])))
    arguments = parser.parse_args()
    results = read_kept(Result, arguments.results)
    done = {(r.seed, r.dtype, r.correction) for r in results}
    for cell in itertools.product(
        map(int, arguments.seeds.split(",")), arguments.dtypes.split(","), CORRECTIONS
    ):
        if cell not in done:
            seed, dtype, correction = cell
            results.append(run_cell(dtype, correction, seed, arguments))
            keep(results[-1], arguments.results)
            print(results[-1], flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
