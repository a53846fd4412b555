"""What interruptible generation is worth, for `make bench`: the same training with each way to publish.

    python tests/benchmarks/interrupt_bench.py [--cores 0,1] [--seeds 0,1] [--steps 28] [--only longtail]

rollout.interrupt: drain is the baseline: what trainers without partial rollouts do. The ways take turns, so
that other load on the machine meets all of them. Figures are of the steady state, without evaluations.

    step        seconds from one request for a batch to the next
    tokens      generated per second
    publish     seconds to write a version, install it on the server and compare digests
    drained     seconds before that until the last answer in flight had ended
    trainer, rollout idle   share of the time in which the trainer waited, the server ran no request
    old cache   trained tokens of answers that went on over keys and values of the version before
    staleness   trainer version - version that made the token, mean over trained tokens
"""

import argparse
import os
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

from training_runs import ARITHMETIC, LONGTAIL, Run, train

WAYS = ("continue", "retract", "abort", "drain")
BASELINE = "drain"
RECIPES = {"arithmetic": ARITHMETIC, "longtail": LONGTAIL}
COLUMNS: dict[str, Callable[[Run], str]] = {
    "step": lambda run: f"{run.step_seconds():.3f} s",
    "tokens": lambda run: f"{run.mean('rollout_tokens_per_second'):.0f}/s",
    "publish": lambda run: f"{1e3 * run.mean('publish_seconds'):.1f} ms",
    "drained": lambda run: f"{1e3 * run.mean('drain_seconds'):.0f} ms",
    "trainer idle": lambda run: f"{run.share('trainer_idle_share'):.1%}",
    "rollout idle": lambda run: f"{run.share('rollout_idle_share'):.1%}",
    "old cache": lambda run: f"{run.mean('continued_share'):.1%}",
    "staleness": lambda run: f"{run.mean('staleness_mean'):.2f}",
}


def row(name: str, cells: list[str]) -> str:
    return f"  {name:18s}" + "".join(f"{cell:>14s}" for cell in cells)


def bench(recipe: Path, cores: str, *, seeds: list[int], num_steps: int) -> dict[str, list[Run]]:
    """A run of each way per seed, in turn; prints a row for each."""
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    print(row("", list(COLUMNS)))
    for seed in seeds:
        for way in WAYS:
            run = train(
                recipe,
                cores,
                seed=seed,
                rollout__interrupt=way,
                trainer__num_steps=num_steps,
                evaluation__every_steps=0,
                evaluation__num_tasks=16,
            )
            runs[way].append(run)
            print(row(f"{way}, seed {seed}", [cell(run) for cell in COLUMNS.values()]), flush=True)
    return runs


def compare(runs: dict[str, list[Run]]) -> None:
    """Step times, each way against the baseline with the same seed."""
    for way in WAYS:
        if way != BASELINE:
            ratios = [
                drained.step_seconds() / run.step_seconds()
                for drained, run in zip(runs[BASELINE], runs[way], strict=True)
            ]
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"  {BASELINE} / {way}, step time: {statistics.median(ratios):.2f}x (per seed: {each})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--only", default=",".join(RECIPES))
    arguments = parser.parse_args()
    os.chdir(Path(__file__).resolve().parents[2])
    assert shutil.which("taskset"), "taskset (util-linux) pins the runs to cores"
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    print(f"cores {arguments.cores}, load before {os.getloadavg()[0]:.1f}")
    for name in arguments.only.split(","):
        print(f"{RECIPES[name].name}, {arguments.steps} steps, by rollout.interrupt")
        compare(bench(RECIPES[name], arguments.cores, seeds=seeds, num_steps=arguments.steps))


if __name__ == "__main__":
    main()
