"""The whole loop, for `make bench`: time to an accuracy, alone and against TRL.

    python tests/benchmarks/loop_bench.py [--cores 0,1] [--seeds 0,1,2] [--only target,trl,longtail] [--rows]

What the truncated importance weights cost is measured in trainer_bench.py. Every ratio compares runs of this
invocation on the same cores, in turn on each seed, the order turned around each time. Times of ours count
from the moment the servers are ready. Beside TRL, whose clock stands still while it evaluates and loads, ours
are given with all evaluations, which run during training, on the rollout servers or on one more, and without
any: checkpoints are evaluated after the run. `--rows` keeps each seed as a line of beside_trl.jsonl, skips
those that are there, and writes the table and figure of docs/measurements/speed.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asyncrl.recipe.file import load_recipe
from tests.benchmarks.kept import keep, markdown, panels, read_kept, write_between
from tests.benchmarks.paired import interval, plus_minus
from tests.benchmarks.training_runs import ARITHMETIC, LONGTAIL, Run, train
from tests.benchmarks.trl_runs import run_trl

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "tests" / "benchmarks" / "beside_trl.jsonl"
FIGURE = ROWS.with_suffix(".svg")
PAGE = ROOT / "docs" / "measurements" / "speed.md"
BEGIN, END = "<!-- Written by `loop_bench.py --rows`: -->\n\n", "\n<!-- End of what the rows say. -->"
TARGET = 0.95
EVALUATE_STEPS = 5
WHOLE, APART = "asyncrl, evaluated while it trains", "asyncrl, evaluated by a server of its own"
TRL, ALONE = "TRL", "asyncrl"
SIDES = (TRL, WHOLE, APART, ALONE)

Curve = list[tuple[float, float]]
"""(seconds, held-out greedy accuracy)."""


@dataclass(frozen=True)
class Row:
    """The runs of one seed."""

    recipe: str
    seed: int
    load: float
    """Processes that ran or waited in the minute before."""
    curves: dict[str, Curve]
    """By side; it ends where TARGET is reached."""
    step_seconds: dict[str, float]
    """Mean, without the first steps."""

    def seconds_to(self, side: str) -> float | None:
        return next((seconds for seconds, accuracy in self.curves[side] if accuracy >= TARGET), None)


def curve_of(run: Run) -> Curve:
    """The curve of a run that was evaluated while it trained."""
    rows = [row for row in run.evaluations if row["when"] != "after"]
    return [
        (max(0.0, row["time_seconds"] - run.ready_time) if row["step"] else 0.0, row["greedy_accuracy"])
        for row in rows
    ]


def bench_target(recipe: Path, cores: str, seed: int, evaluation_servers: int = 0) -> Run:
    """Start-up to the target accuracy."""
    run = train(
        recipe,
        cores,
        seed=seed,
        evaluation__every_steps=EVALUATE_STEPS,
        evaluation__stop_at_accuracy=TARGET,
        evaluation__num_servers=evaluation_servers,
    )
    seconds = run.seconds_to(TARGET)
    reached = f"{seconds:.1f} s" if seconds is not None else "never"
    print(
        f"  seed {seed}: start-up {run.ready_seconds:.1f} s, then to {TARGET:.2f} {reached} in "
        f"{len(run.steps)} steps; after training {run.accuracy():.3f}; peak memory "
        f"{run.peak_bytes / 2**30:.2f} GiB; command {run.wall_seconds:.1f} s",
        flush=True,
    )
    return run


def bench_unevaluated(recipe: Path, cores: str, seed: int) -> tuple[Curve, Run]:
    """The run, and its curve by checkpoints that were evaluated after it, one each EVALUATE_STEPS."""
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
        steps = range(EVALUATE_STEPS, len(run.steps) + 1, EVALUATE_STEPS)
        command = [sys.executable, "-m", "asyncrl.commands.main", "eval", f"{folder}/run", heldout, "--json"]
        command += ["--k", "1", "--num-tasks", str(num_tasks), "--at", ",".join(map(str, steps))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    results = json.loads(done.stdout)["benchmarks"][0]["results"].values()
    curve = [
        (float(run.steps[step - 1]["time_seconds"]) - run.ready_time, float(row["greedy_accuracy"]))
        for step, row in zip(steps, results, strict=True)
    ]
    shown = ", ".join(f"{accuracy:.3f} after {seconds:.1f} s" for seconds, accuracy in curve)
    print(f"  seed {seed}, without evaluations: {shown}", flush=True)
    return curve, run


def bench_seed(recipe: Path, cores: str, seed: int) -> Row:
    """All sides from the same base model, TRL first on odd seeds."""
    load = os.getloadavg()[0]
    curves: dict[str, Curve] = {}
    step_seconds: dict[str, float] = {}

    def theirs() -> None:
        found = run_trl(recipe, TARGET, seed=seed, cores=tuple(map(int, cores.split(","))))
        print(f"  TRL: {json.dumps(found)}", flush=True)
        curves[TRL] = [(seconds, accuracy) for seconds, accuracy in found["curve"]]
        step_seconds[TRL] = round(found["seconds_per_step"], 4)

    def ours() -> None:
        for side, num_servers in ((WHOLE, 0), (APART, 1)):
            run = bench_target(recipe, cores, seed, num_servers)
            curves[side], step_seconds[side] = curve_of(run), round(run.step_seconds(), 4)
        curve, run = bench_unevaluated(recipe, cores, seed)
        curves[ALONE] = [curves[WHOLE][0], *_until_target(curve)]
        step_seconds[ALONE] = round(run.step_seconds(), 4)

    for side in (theirs, ours) if seed % 2 else (ours, theirs):
        side()
    rounded = {side: [(round(at, 2), round(height, 4)) for at, height in curves[side]] for side in SIDES}
    return Row(recipe.stem, seed, round(load, 1), rounded, step_seconds)


def _until_target(curve: Curve) -> Curve:
    last = next((i for i, (_, accuracy) in enumerate(curve) if accuracy >= TARGET), len(curve))
    return curve[: last + 1]


def table(rows: Sequence[Row]) -> str:
    """Markdown. ± is half a 95% interval over seeds; ratios pair the runs of a seed."""
    lines = []
    for side in SIDES:
        pairs = [(row.seconds_to(side), row.seconds_to(TRL)) for row in rows]
        reached = [(own, trl) for own, trl in pairs if own is not None and trl is not None]
        steps = [row.step_seconds[side] for row in rows]
        sooner = plus_minus([trl / own for own, trl in reached], 2)
        quicker = plus_minus([row.step_seconds[TRL] / row.step_seconds[side] for row in rows], 2)
        told = f"{plus_minus([own for own, _ in reached], 1)} ({len(reached)} of {len(rows)} seeds)"
        ratios = ("", "") if side == TRL else (sooner, quicker)
        lines.append((side, told, ratios[0], plus_minus(steps, 3), ratios[1]))
    heads = ("arithmetic recipe", f"seconds to {TARGET:.2f}", "TRL / it", "seconds per step", "TRL / it")
    return markdown(heads, lines)


def draw(rows: Sequence[Row]) -> None:
    """Held-out accuracy over seconds: a faint line per seed, and the mean time to TARGET, with interval."""
    with panels(FIGURE, 1, width=6, height=3.4) as (panel,):
        for number, side in enumerate(SIDES):
            for row in rows:
                panel.plot(*zip(*row.curves[side], strict=True), color=f"C{number}", alpha=0.35)
            found = [seconds for row in rows if (seconds := row.seconds_to(side)) is not None]
            if found:
                mean, width = interval(found)
                panel.axvspan(mean - width, mean + width, color=f"C{number}", alpha=0.15, linewidth=0)
                panel.axvline(mean, color=f"C{number}", label=f"{side}: {mean:.1f} s")
        panel.axhline(TARGET, color="gray", linewidth=0.8, linestyle=":")
        panel.set(xlabel="seconds", ylabel="held-out accuracy, greedy", ylim=(0, 1.02), xlim=(0, None))
        panel.legend(frameon=False, loc="lower right")


def bench_trl(recipe: Path, cores: str, seeds: Sequence[int], keeps: bool = False) -> None:
    rows = [row for row in read_kept(Row, ROWS) if row.recipe == recipe.stem] if keeps else []
    for seed in seeds:
        if seed in {row.seed for row in rows}:
            continue
        rows.append(bench_seed(recipe, cores, seed))
        if keeps:
            keep(rows[-1], ROWS)
    print(table(rows), flush=True)
    if keeps:
        draw(rows)
        link = f"![held-out accuracy over seconds]({os.path.relpath(FIGURE, PAGE.parent)})"
        write_between(PAGE, BEGIN, END, f"{table(rows)}\n\n{link}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="target,trl,longtail")
    parser.add_argument("--rows", action="store_true", help="keeps the rows of the arithmetic recipe")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    assert shutil.which("taskset"), "taskset (util-linux) pins the runs to cores"
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    wanted = arguments.only.split(",")
    print(f"cores {arguments.cores}, load before {os.getloadavg()[0]:.1f}")
    if "target" in wanted and "trl" not in wanted:
        print(f"{ARITHMETIC.name}: from start-up to {TARGET}")
        for seed in seeds:
            bench_target(ARITHMETIC, arguments.cores, seed)
    if "trl" in wanted:
        print(f"{ARITHMETIC.name}: from start-up to {TARGET}, beside TRL's GRPOTrainer")
        bench_trl(ARITHMETIC, arguments.cores, seeds, arguments.rows)
    if "longtail" in wanted:
        print(f"{LONGTAIL.name}: beside TRL's GRPOTrainer")
        bench_trl(LONGTAIL, arguments.cores, seeds[:1])


if __name__ == "__main__":
    main()
