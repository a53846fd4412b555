"""Runs a cell: one whole `asyncrl train` on one core, in a folder that a cut run resumes in."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from asyncrl.launch.stopping import INTERRUPTED
from asyncrl.observe.metrics.metrics_file import written_rows
from tests.benchmarks.algorithms.noise import VARIABLE
from tests.benchmarks.algorithms.plan import RECIPES, ROOT, SAMPLED, Cell, Row

PROGRAM = ROOT / "tests" / "benchmarks" / "stalest.py"
LAST_CHARACTERS = 2000
EXACT = 1e-6
POLL_SECONDS = 1.0


class CellFailed(Exception):
    """The run ended with an error, or its data had another age than the cell's."""


class CellStopped(Exception):
    """Ctrl-C; the next call resumes the cell."""


def run_cell(cell: Cell, folder: Path, core: int) -> Row:
    """Trains, or resumes, in folder/NAME; the folder is removed once the row is made. Raises CellFailed and
    CellStopped."""
    own = folder / cell.name()
    own.mkdir(parents=True, exist_ok=True)
    command = ["taskset", "-c", str(core), sys.executable, str(PROGRAM), "train", str(RECIPES[cell.recipe])]
    command += [f"run_folder={own}/run"]
    command += [f"{key}={json.dumps(value)}" for key, value in cell.keys().items()]
    cpu, wall = _spent(own)
    began = time.monotonic()
    with (own / "log").open("a") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(cell), stdout=log, stderr=subprocess.STDOUT, text=True
        )
        cpu += _wait(process)
    wall += time.monotonic() - began
    (own / "spent.json").write_text(json.dumps([cpu, wall]))
    if process.returncode == INTERRUPTED:
        raise CellStopped(cell.name())
    if process.returncode != 0:
        tail = (own / "log").read_text(errors="replace")[-LAST_CHARACTERS:]
        raise CellFailed(f"{cell.name()} ended with {process.returncode}; {own} resumes it.\n{tail}")
    rows = written_rows(own / "run" / "metrics.jsonl")
    # A run that is no result would end as such again: the next call starts it from the beginning.
    shutil.rmtree(own)
    return make_row(cell, rows, cpu_seconds=cpu, wall_seconds=wall)


def make_row(cell: Cell, rows: list[dict[str, Any]], *, cpu_seconds: float, wall_seconds: float) -> Row:
    """The result of a finished run by its metrics. Raises CellFailed where an update trained data of another
    age than min(lag, update): such a cell is not what the table would say."""
    steps = {row["step"]: row for row in rows if row["kind"] == "step"}
    if sorted(steps) != list(range(1, cell.num_updates + 1)):
        raise CellFailed(f"{cell.name()}: {len(steps)} updates, expected 1 to {cell.num_updates}.")
    for step, row in steps.items():
        age = min(cell.lag, step - 1)
        if abs(row["staleness_mean"] - age) > EXACT or row["staleness_max"] != age:
            raise CellFailed(
                f"{cell.name()}: update {step} trained data of age {row['staleness_mean']} (at most "
                f"{row['staleness_max']}), expected {age} throughout. The next call runs it again."
            )
    heldout = {
        row["step"]: row["avg_at_k"]
        for row in rows
        if row["kind"] == "benchmark" and row["benchmark"] == SAMPLED
    }
    greedy = {row["when"]: round(row["greedy_accuracy"], 6) for row in rows if row["kind"] == "eval"}
    kls = [row["mismatch_kl"] for row in steps.values() if row.get("mismatch_kl") is not None]
    return Row(
        cell.axis,
        cell.arm,
        cell.lag,
        cell.noise,
        cell.seed,
        cell.rate,
        cell.digest(),
        [(step, round(heldout[step], 6)) for step in sorted(heldout)],
        (greedy["before"], greedy["after"]),
        [round(steps[step]["reward_mean"], 5) for step in sorted(steps)],
        sum(kls) / len(kls) if kls else None,
        round(cpu_seconds, 1),
        round(wall_seconds, 1),
        _commit(),
    )


def _wait(process: subprocess.Popen[str]) -> float:
    """CPU seconds of the process and all below it, until it ended. The usage that the kernel hands to a
    parent lacks SGLang's scheduler, whose own parent is killed before it can wait for it."""
    seen: dict[tuple[int, float], float] = {}
    own = psutil.Process(process.pid)
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in (own, *own.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = each.cpu_times()
                    seen[each.pid, each.create_time()] = times.user + times.system
        time.sleep(POLL_SECONDS)
    return sum(seen.values())


def _environment(cell: Cell) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return environment | ({VARIABLE: repr(cell.noise)} if cell.noise else {})


def _spent(own: Path) -> tuple[float, float]:
    """CPU and wall seconds of earlier tries."""
    path = own / "spent.json"
    if not path.exists():
        return 0.0, 0.0
    cpu, wall = json.loads(path.read_text())
    return cpu, wall


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
