"""The schedules reach what they should: every reason to end a stream early, and both ways it then ends; turns
that meet every event."""

from unittest import mock

from simulation.plan import draw
from simulation.schedule import run_schedule

from asyncrl.replay.group import GroupState
from asyncrl.rollout.early_abort import EarlyAbort
from asyncrl.rollout.generate import Connection
from asyncrl.serving.server import ServerState

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
