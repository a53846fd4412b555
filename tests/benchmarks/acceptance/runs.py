"""Whole runs of the acceptance, and what every one of them must show."""

import math
import statistics
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from fakes.whole_run import WholeRun

from asyncrl.journal.conservation import read_conservation, token_fates
from tests.benchmarks.acceptance.checks import Check, Setting

LAST_LINES = 6
TELL_SECONDS = 10.0
"""Between two lines of its progress."""


def finish(run: WholeRun, *, num_steps: int, seconds: float, check: Check) -> None:
    """Starts it and waits for its end. Raises ValueError where it does not end well."""
    deadline, code = time.monotonic() + seconds, None
    process = run.start().process
    assert process is not None
    while code is None and time.monotonic() < deadline:
        try:
            code = process.wait(TELL_SECONDS)
        except subprocess.TimeoutExpired:
            print(_last_lines(run, 1), flush=True)
    check.require(code is not None, f"not done after {seconds:.0f} s: {_last_lines(run, 1)}")
    check.require(code == 0, f"exit code {code}: {_last_lines(run, LAST_LINES)}")
    steps = run.steps()
    check.require(len(steps) == num_steps, f"{len(steps)} of {num_steps} steps")
    check.require(all(math.isfinite(row["loss"]) for row in steps), "a loss is no number")


def _last_lines(run: WholeRun, count: int) -> str:
    return " ".join([line for line in run.output().splitlines() if line.strip()][-count:])


def median(steps: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in steps if row.get(name) is not None]
    return statistics.median(values) if values else None


def shown(steps: Sequence[dict[str, Any]], names: dict[str, str]) -> str:
    """Medians over steps, those that there are; `names` are columns and how each is printed."""
    found = [(column, form, median(steps, column)) for column, form in names.items()]
    return ", ".join(form.format(value) for _, form, value in found if value is not None)


def check_mismatch(run: WholeRun, setting: Setting, check: Check) -> None:
    """KL between trainer and server on tokens of the current version, or of an older one's cache."""
    steps = run.steps()
    kl, factor = median(steps, "mismatch_kl"), 1.0
    if kl is None:
        # As the alarm mismatch_kl has it.
        kl, factor = median(steps, "continued_kl"), 2.0
    check.require(kl is not None, "no step has tokens of its own version")
    assert kl is not None
    limit = factor * setting.mismatch_limit
    check.figure = f"KL {kl:.1e} nats per token, median of {len(steps)} steps"
    check.require(kl < limit, f"the KL is above {limit:g}")


def check_books(run: WholeRun, check: Check) -> None:
    """Every generated token is trained, dropped with a reason, taken or queued."""
    tokens = read_conservation(run.run_folder / "journal.sqlite")
    assert tokens.keys() == token_fates({}, taken=0, queued=0).keys()
    missing = 2 * tokens["generated"] - sum(tokens.values())
    check.figure = (
        f"{tokens['generated']:,} generated, {tokens['trained']:,} trained, {missing} not accounted for"
    )
    check.require(missing == 0 and tokens["trained"] > 0, "the books do not balance")
