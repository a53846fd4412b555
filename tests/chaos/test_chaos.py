"""A short chaos run; `make chaos` is the long one."""

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).with_name("chaos.py")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["turns", "agent"])
def test_turns_and_agents_that_are_broken_again_and_again_lose_nothing(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, str(CHAOS), "--kind", kind, "--faults", "8", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_run_that_is_broken_again_and_again_loses_nothing_and_learns_all_the_same() -> None:
    # A process of its own: it takes mounts of its own.
    done = subprocess.run(
        [sys.executable, str(CHAOS), "--kind", "one_turn", "--faults", "10", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    is_filled = all(f"filled the disk of the {name}" in done.stdout for name in ("journal", "run"))
    assert is_filled or "without full disks" in done.stdout
