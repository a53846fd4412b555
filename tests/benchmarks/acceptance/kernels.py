"""Part `kernels`: the tests marked gpu, on the device of the check."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.acceptance.checks import FAIL, Checks, Row, Setting, end

MOST_FAILURES = 5
"""Failed tests with a row of their own."""
DEVICE_VARIABLE = "ASYNCRL_CHECKED_DEVICE"
"""As tests/fakes/checked_device.py reads it."""


@dataclass(frozen=True, slots=True)
class Suite:
    passed: int
    skipped: dict[str, int]
    """Reason -> tests."""
    failures: list[tuple[str, str]]
    """(test, the first line of why)."""


def read_suite(junit: Path) -> Suite:
    """The counts and failures in pytest's XML."""
    passed, skipped, failures = 0, dict[str, int](), list[tuple[str, str]]()
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        broken = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        left_out = case.find("skipped")
        if broken is not None:
            failures.append((str(case.get("name")), str(broken.get("message", "")).splitlines()[0]))
        elif left_out is not None:
            reason = str(left_out.get("message", ""))[:60]
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            passed += 1
    return Suite(passed, skipped, failures)


def work(checks: Checks, setting: Setting) -> None:
    junit = setting.folder / "tests.xml"
    # Packages that only such a machine has may warn.
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-m", "gpu", "tests/gpu"]
    device = "cuda" if setting.on_gpu else "cpu"
    code = subprocess.run(
        [*command, f"--junitxml={junit}", f"--basetemp={setting.folder / 'tests'}"],
        env=os.environ | {DEVICE_VARIABLE: device},
        check=False,
    ).returncode
    advice = "Do not train on this machine yet: the trainer's numbers are not the formula's. See kernels.log."
    with checks.row("kernels and the trainer against transformers", advice) as check:
        if not junit.exists():
            raise ValueError(f"pytest ended with {code} before it ran a test")
        suite = read_suite(junit)
        skipped = "; ".join(f"{count} skipped: {reason}" for reason, count in suite.skipped.items())
        check.figure = f"{suite.passed} tests passed{f'; {skipped}' if skipped else ''}"
        check.require(not suite.failures, f"{len(suite.failures)} tests failed")
        check.require(suite.passed > 0, "no test ran")
        check.require(code == 0, f"pytest ended with {code}")
    if junit.exists():
        for name, why in read_suite(junit).failures[:MOST_FAILURES]:
            repeat = f'python -m pytest -m gpu tests/gpu -k "{name.partition("[")[0]}"'
            checks.add(Row(name, FAIL, why[:200], f"Repeat it alone: `{repeat}`."))


if __name__ == "__main__":
    end(work)
