"""The whole loop, for `make bench`: time to an accuracy, against TRL, against our own synchronous mode.

    python tests/benchmarks/loop_bench.py [--cores 0,1] [--seeds 0,1,2]
        [--only target,sync,sync_longtail,trl,longtail]

What the truncated importance weights cost is measured in trainer_bench.py. Every ratio compares runs of this
invocation on the same cores. Times of ours count from the moment the servers are ready and include all
evaluations, which run during training; TRL's exclude its evaluations and its model load.
"""

import argparse
import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

from training_runs import ARITHMETIC, LONGTAIL, Run, train
from trl_runs import run_trl

TARGET = 0.95


def bench_target(recipe: Path, cores: str, seeds: list[int]) -> list[Run]:
    """Start-up to the target accuracy, per seed."""
    runs = []
    for seed in seeds:
        run = train(recipe, cores, seed=seed, evaluation__every_steps=5, evaluation__stop_at_accuracy=TARGET)
        runs.append(run)
        seconds = run.seconds_to(TARGET)
        reached = f"{seconds:.1f} s" if seconds is not None else "never"
        print(
            f"  seed {seed}: start-up {run.ready_seconds:.1f} s, then to {TARGET:.2f} {reached} in "
            f"{len(run.steps)} steps; after training {run.accuracy():.3f}; peak memory "
            f"{run.peak_bytes / 2**30:.2f} GiB; command {run.wall_seconds:.1f} s",
            flush=True,
        )
    return runs


def bench_sync(recipe: Path, cores: str, **overrides: Any) -> None:
    """Our asynchronous mode against our synchronous one: same steps, evaluated before and after only."""
    synchronous = overrides | {"rollout__max_staleness": 0}
    modes = {
        name: train(recipe, cores, evaluation__every_steps=0, **changes)
        for name, changes in (("async", overrides), ("sync", synchronous))
    }
    for name, run in modes.items():
        print(
            f"  {name}: {run.step_seconds():.3f} s per step, {run.milliseconds_per_token():.3f} ms per "
            f"trained token, trainer idle {run.share('trainer_idle_share'):.1%}, rollout idle "
            f"{run.share('rollout_idle_share'):.1%}, accuracy {run.accuracy():.3f}",
            flush=True,
        )
    slow, fast = modes["sync"], modes["async"]
    print(
        f"  synchronous / asynchronous: {slow.step_seconds() / fast.step_seconds():.2f}x per step, "
        f"{slow.milliseconds_per_token() / fast.milliseconds_per_token():.2f}x per trained token",
        flush=True,
    )


def bench_sync_longtail(cores: str) -> None:
    """The fewer trajectories a batch has, the more of a synchronous step is the wait for the longest."""
    for groups, staleness, steps in ((16, 4, 24), (8, 6, 40), (4, 8, 40)):
        print(f"{LONGTAIL.name}: {groups} groups of 8 per batch, max_staleness {staleness} against 0")
        bench_sync(
            LONGTAIL,
            cores,
            rollout__groups_per_batch=groups,
            rollout__max_staleness=staleness,
            trainer__num_steps=steps,
        )


def bench_trl(recipe: Path, cores: str, ours: list[Run]) -> None:
    """TRL from the same base model to the same accuracy."""
    theirs = run_trl(recipe, TARGET, cores=tuple(int(core) for core in cores.split(",")))
    print(f"  TRL: {json.dumps(theirs)}")
    mine = [run.seconds_to(TARGET) for run in ours]
    reached = [seconds for seconds in mine if seconds is not None]
    if reached and theirs["is_reached"]:
        ratio = theirs["seconds_to_target"] / statistics.median(reached)
        print(f"  TRL / ours, time to {TARGET:.2f}: {ratio:.2f}x")
    per_step = theirs["seconds_per_step"] / statistics.median(run.step_seconds() for run in ours)
    print(f"  TRL / ours, seconds per step: {per_step:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="target,sync,sync_longtail,trl,longtail")
    arguments = parser.parse_args()
    os.chdir(Path(__file__).resolve().parents[2])
    assert shutil.which("taskset"), "taskset (util-linux) pins the runs to cores"
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    wanted = arguments.only.split(",")
    print(f"cores {arguments.cores}, load before {os.getloadavg()[0]:.1f}")
    runs: list[Run] = []
    if "target" in wanted or "trl" in wanted:
        print(f"{ARITHMETIC.name}: from start-up to {TARGET}")
        runs = bench_target(ARITHMETIC, arguments.cores, seeds)
    if "sync" in wanted:
        print(f"{ARITHMETIC.name}: asynchronous (max_staleness 4) against synchronous (0)")
        bench_sync(ARITHMETIC, arguments.cores)
    if "sync_longtail" in wanted:
        bench_sync_longtail(arguments.cores)
    if "trl" in wanted:
        print("against TRL's GRPOTrainer")
        bench_trl(ARITHMETIC, arguments.cores, runs)
    if "longtail" in wanted:
        print(f"{LONGTAIL.name}: against TRL's GRPOTrainer")
        bench_trl(LONGTAIL, arguments.cores, bench_target(LONGTAIL, arguments.cores, seeds[:1]))


if __name__ == "__main__":
    main()
