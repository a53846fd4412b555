"""Whole `asyncrl train` runs for the benchmarks: started on chosen cores, read back from their metrics."""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from asyncrl.run.metrics_file import written_rows

ARITHMETIC = Path("recipes/r1_zero_arithmetic_cpu.yaml")
LONGTAIL = Path("recipes/r1_zero_longtail_cpu.yaml")
SMOLLM2_RECIPE = Path("recipes/r1_zero_smollm2_cpu.yaml")
SMOLLM2 = Path(".cache/smollm2/model")
"""The model that the recipe makes."""
WARM_STEPS = 5
COOL_STEPS = 8
"""Left out of the steady state: the first steps, and the last max_staleness, while little is generated."""


@dataclass(frozen=True)
class Run:
    """What one `asyncrl train` did."""

    wall_seconds: float
    """Of the whole command: start-up, evaluations, report."""
    peak_bytes: int
    """Largest sum over all processes of their proportional share of memory."""
    ready_seconds: float
    """From the start of the command until servers and trainer were up."""
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    ready_time: float

    def seconds_to(self, target: float) -> float | None:
        """From ready to the end of the first evaluation that reached `target`."""
        for row in self.evaluations:
            if row["when"] != "before" and row["greedy_accuracy"] >= target:
                return float(row["time_seconds"]) - self.ready_time
        return None

    def accuracy(self) -> float:
        return float(self.evaluations[-1]["greedy_accuracy"])

    def steady(self, field: str) -> list[float]:
        return [row[field] for row in self.steps[WARM_STEPS:-COOL_STEPS] if row.get(field) is not None]

    def share(self, field: str) -> float:
        """Time-weighted mean of a share over the steady state."""
        seconds = self.steady("step_seconds")
        return sum(s * v for s, v in zip(seconds, self.steady(field), strict=True)) / sum(seconds)

    def step_seconds(self) -> float:
        return statistics.fmean(self.steady("step_seconds"))

    def milliseconds_per_token(self) -> float:
        """Of the loop, per response token trained: lengths grow with what was learned, and so not alike."""
        return 1e3 * sum(self.steady("step_seconds")) / sum(self.steady("num_tokens"))

    def mean(self, field: str) -> float:
        """Over the steps of the steady state; 0 where no step measured it."""
        values = self.steady(field)
        return statistics.fmean(values) if values else 0.0


def train(
    recipe: Path, cores: str, *, folder: Path | None = None, words: Sequence[str] = (), **overrides: Any
) -> Run:
    """Runs the command on `cores`. `folder` keeps the run as "run"; without it nothing stays. `words`
    ("section.key=value") change the recipe before `overrides` do."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncrl-bench-")))
        arguments = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in overrides.items()]
        command = ["taskset", "-c", cores, sys.executable, "-m", "asyncrl.commands.main", "train"]
        command += [str(recipe), *words, f"run_folder={folder}/run", *arguments]
        began = time.time()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        peak = 0
        while process.poll() is None:
            peak = max(peak, _memory_bytes(process.pid))
            time.sleep(1.0)
        output = process.communicate()[0]
        assert process.returncode == 0, output
        ended = time.time()
        rows = written_rows(Path(folder, "run", "metrics.jsonl"))
    ready = next(row["time_seconds"] for row in rows if row.get("event") == "ready")
    return Run(
        ended - began,
        peak,
        ready - began,
        [row for row in rows if row["kind"] == "step"],
        [row for row in rows if row["kind"] == "eval"],
        ready,
    )


def _memory_bytes(pid: int) -> int:
    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in family:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total
