"""The whole loop, for `make bench`: time to an accuracy, alone and against TRL.

    python tests/benchmarks/loop_bench.py [--cores 0,1] [--seeds 0,1,2]
        [--only target,trl,longtail]

What the truncated importance weights cost is measured in trainer_bench.py. Every ratio compares runs of this
invocation on the same cores. Times of ours count from the moment the servers are ready. Beside TRL, whose
clock stands still while it evaluates and loads, ours are given twice: with all evaluations, which run during
training, and of a run without any, whose checkpoints are evaluated after it.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from training_runs import ARITHMETIC, LONGTAIL, Run, train
from trl_runs import run_trl

from asyncrl.recipe.file import load_recipe

TARGET = 0.95
EVALUATE_STEPS = 5


def bench_target(recipe: Path, cores: str, seeds: list[int]) -> list[Run]:
    """Start-up to the target accuracy, per seed."""
    runs = []
    for seed in seeds:
        run = train(
            recipe,
            cores,
            seed=seed,
            evaluation__every_steps=EVALUATE_STEPS,
            evaluation__stop_at_accuracy=TARGET,
        )
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


def bench_unevaluated(recipe: Path, cores: str, seed: int) -> tuple[float | None, Run]:
    """Seconds from start-up to the first checkpoint of TARGET, one each EVALUATE_STEPS, and the run."""
    read = load_recipe(recipe)
    num_tasks, heldout = read.evaluation.num_tasks, read.data.heldout
    assert isinstance(heldout, str), "the comparison needs one file of held-out rows"
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        run = train(
            recipe,
            cores,
            folder=Path(folder),
            seed=seed,
            data__heldout=None,
            evaluation__every_steps=0,
            trainer__checkpoint_every_steps=EVALUATE_STEPS,
            trainer__keep_checkpoints=100,
        )
        steps = [str(step) for step in range(EVALUATE_STEPS, len(run.steps) + 1, EVALUATE_STEPS)]
        command = [sys.executable, "-m", "asyncrl.commands.main", "eval", f"{folder}/run", heldout, "--json"]
        command += ["--k", "1", "--num-tasks", str(num_tasks), "--at", ",".join(steps)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    results = json.loads(done.stdout)["benchmarks"][0]["results"].values()
    accuracies = [float(row["greedy_accuracy"]) for row in results]
    first = next((index for index, accuracy in enumerate(accuracies) if accuracy >= TARGET), None)
    shown = ", ".join(f"{accuracy:.3f}" for accuracy in accuracies)
    print(f"  seed {seed}, without evaluations: held-out {shown} at steps {', '.join(steps)}", flush=True)
    if first is None:
        return None, run
    seconds = float(run.steps[int(steps[first]) - 1]["time_seconds"]) - run.ready_time
    print(f"    {TARGET:.2f} after {seconds:.1f} s, {run.step_seconds():.3f} s per step", flush=True)
    return seconds, run


def bench_trl(recipe: Path, cores: str, seeds: list[int]) -> None:
    """Both from the same base model to the same accuracy, in turn on each seed."""
    theirs, evaluated, alone = [], [], []
    for seed in seeds:
        evaluated += bench_target(recipe, cores, [seed])
        theirs.append(run_trl(recipe, TARGET, seed=seed, cores=tuple(map(int, cores.split(",")))))
        print(f"  TRL: {json.dumps(theirs[-1])}")
        alone.append(bench_unevaluated(recipe, cores, seed))
    their_seconds = [run["seconds_to_target"] for run in theirs if run["is_reached"]]
    their_step = statistics.median(run["seconds_per_step"] for run in theirs)
    for name, seconds, runs in (
        ("ours with its evaluations", [run.seconds_to(TARGET) for run in evaluated], evaluated),
        ("neither with evaluations", [seconds for seconds, _ in alone], [run for _, run in alone]),
    ):
        reached = [each for each in seconds if each is not None]
        if reached and their_seconds:
            ratio = statistics.median(their_seconds) / statistics.median(reached)
            print(
                f"  TRL / ours, time to {TARGET:.2f}, {name}: {ratio:.2f}x "
                f"(reached by {len(their_seconds)} and {len(reached)} of {len(seeds)})"
            )
        per_step = their_step / statistics.median(run.step_seconds() for run in runs)
        print(f"  TRL / ours, seconds per step, {name}: {per_step:.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="target,trl,longtail")
    arguments = parser.parse_args()
    os.chdir(Path(__file__).resolve().parents[2])
    assert shutil.which("taskset"), "taskset (util-linux) pins the runs to cores"
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    wanted = arguments.only.split(",")
    print(f"cores {arguments.cores}, load before {os.getloadavg()[0]:.1f}")
    if "target" in wanted and "trl" not in wanted:
        print(f"{ARITHMETIC.name}: from start-up to {TARGET}")
        bench_target(ARITHMETIC, arguments.cores, seeds)
    if "trl" in wanted:
        print(f"{ARITHMETIC.name}: from start-up to {TARGET}, beside TRL's GRPOTrainer")
        bench_trl(ARITHMETIC, arguments.cores, seeds)
    if "longtail" in wanted:
        print(f"{LONGTAIL.name}: beside TRL's GRPOTrainer")
        bench_trl(LONGTAIL, arguments.cores, seeds[:1])


if __name__ == "__main__":
    main()
