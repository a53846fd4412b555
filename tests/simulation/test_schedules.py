"""The rollout side under thousands of seeded schedules: every invariant of a run, in each of them, and what
schedules must reach.

A failing seed is named; `ASYNCRL_SEED=N pytest tests/simulation/test_schedules.py` runs that one alone and
prints what happened. `ASYNCRL_SEED=N:M` runs a range, over all cores.
"""

import gc
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from simulation.plan import draw
from simulation.schedule import run_schedule

from asyncrl.replay.group import GroupState
from asyncrl.rollout.early_abort import EarlyAbort
from asyncrl.rollout.generate import Connection
from asyncrl.serving.server import ServerState

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


MAX_SEEDS = 300
WANTED = {"parked", "dropped", "drained", "hedged", "cut"}
WANTED_BY, TURNS_BY = (36, 60, 123), (18, 9, 30, 34, 47)
"""Seeds that are tried first. After a change of the simulation others have the same, later."""


def test_streams_are_parked_dropped_drained_hedged_and_cut() -> None:
    found: set[str] = set()
    end, cut = EarlyAbort._end, Connection.cut

    async def noting_end(early_abort: EarlyAbort, connections: list[Connection]) -> None:
        for one in connections:
            if early_abort.oversampling.is_over():
                found.add("parked")
            elif one.group.state is not GroupState.OPEN:
                found.add("dropped")
            elif one.server.state is ServerState.LEAVING:
                found.add("drained")
            else:
                found.add("hedged")
        await end(early_abort, connections)

    def noting_cut(connection: Connection) -> None:
        found.add("cut")
        cut(connection)

    with (
        mock.patch.object(EarlyAbort, "_end", noting_end),
        mock.patch.object(Connection, "cut", noting_cut),
    ):
        for seed in (*WANTED_BY, *range(MAX_SEEDS)):
            assert not run_schedule(seed).violations
            if found == WANTED:
                return
    raise AssertionError(f"{MAX_SEEDS} schedules never had {sorted(WANTED - found)}")


TURNS = {
    "several turns trained",
    "one turn trained",
    "a call",
    "a replay",
    "a loss that needs no replay",
    "a turn that ends by its text",
    "a turn over its time",
    "an answer that is abandoned",
    "an answer while the servers sleep",
    "an answer that a drain waits for",
    "an answer over a publish",
    "a wait for a place",
    "a context that is full",
}


def test_turns_meet_every_event() -> None:
    found: set[str] = set()
    with_turns = [seed for seed in range(3 * MAX_SEEDS) if draw(seed).turns is not None]
    for seed in (*TURNS_BY, *with_turns[:MAX_SEEDS]):
        world = run_schedule(seed)
        assert not world.violations
        found |= world.reached
        if found >= TURNS:
            return
    raise AssertionError(f"{MAX_SEEDS} schedules never had {sorted(TURNS - found)}")


PILOTS = {"a pilot that is stopped", "a pilot that is extended"}


def test_pilots_are_stopped_and_extended() -> None:
    found: set[str] = set()
    for seed in [seed for seed in range(MAX_SEEDS) if draw(seed).pilot_samples is not None]:
        world = run_schedule(seed)
        assert not world.violations
        found |= world.reached & PILOTS
        if found == PILOTS:
            return
    raise AssertionError(f"{MAX_SEEDS} schedules never had {sorted(PILOTS - found)}")
