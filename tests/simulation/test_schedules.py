"""The rollout side under thousands of seeded schedules: every invariant of a run, in each of them.

A failing seed is named; `ASYNCRL_SEED=N pytest tests/simulation/test_schedules.py` runs that one alone and
prints what happened. `ASYNCRL_SEED=N:M` runs a range, over all cores.
"""

import gc
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.schedule import run_schedule

NUM_QUICK = 40
NUM_ALL = 10_000
PART = 50
SHOWN = 200


def chosen_seeds() -> list[int] | None:
    first, _, last = os.environ.get("ASYNCRL_SEED", "").partition(":")
    return list(range(int(first), int(last or int(first) + 1))) if first else None


def failures_of(seeds: list[int]) -> list[str]:
    """One text per failing seed: what was violated, and the end of what happened."""
    found = []
    # Each schedule collects its own garbage; what was imported is none.
    gc.freeze()
    for seed in seeds:
        world = run_schedule(seed)
        if world.violations:
            events = "\n".join(world.events[-SHOWN:])
            found.append(f"seed {seed}: {world.violations[:5]}\n{world.plan}\n{events}")
    return found


def run_all(seeds: list[int]) -> list[str]:
    """Over all cores that this process may use; a few here: each process that starts imports for seconds."""
    parts = [seeds[i : i + PART] for i in range(0, len(seeds), PART)]
    if len(parts) == 1:
        return failures_of(seeds)
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        return [text for texts in pool.imap(failures_of, parts) for text in texts]


def test_no_schedule_breaks_an_invariant() -> None:
    seeds = chosen_seeds()
    found = run_all(list(range(NUM_QUICK)) if seeds is None else seeds)
    assert not found, f"{len(found)} schedules failed.\n" + "\n\n".join(found[:3])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ten_thousand_schedules_break_no_invariant() -> None:
    found = run_all(list(range(NUM_QUICK, NUM_ALL)))
    assert not found, f"{len(found)} schedules failed.\n" + "\n\n".join(found[:3])


def test_a_seed_replays_to_the_last_event_in_another_process() -> None:
    code = "from simulation.schedule import run_schedule; print(*run_schedule(7).events, sep='\\n')"
    # Wherever pytest was started.
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tests, tests.parent)))}
    replay = subprocess.run(
        [sys.executable, "-c", code],
        # Ours is another one, drawn at the start of Python.
        env={**environment, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert replay.splitlines() == run_schedule(7).events
