"""Conversations on real processes: one that is lost is replaced, and brought to the same point."""

import dataclasses
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes import turn_tools
from fakes.episodes import OBSERVED, FakeEpisodes, conversations
from fakes.processes import wait_for_end

from asyncrl.records import EnvironmentSpec, Finish, Observed
from asyncrl.turns.calls import Call
from asyncrl.turns.conversation import Ended, Played
from asyncrl.turns.environment import End
from asyncrl.turns.hosted_episode import HostedEpisode
from asyncrl.turns.pool import EpisodePool
from verifiers.verdict import Outcome

GAME = '''
from asyncrl.turns import End, Observation

class Counts:
    """Ends with the third turn."""
    def start(self, row): self.turns, self.wanted = 0, row["wanted"]
    def step(self, text):
        self.turns += 1
        if text == "9": raise KeyError("a bug")
        return End(1.0) if self.turns == self.wanted else Observation(f"turn {self.turns}")

class Neither(Counts):
    recovery = "neither"
'''


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[EpisodePool]:
    (tmp_path / "game.py").write_text(GAME)
    async with EpisodePool(folder=tmp_path, timeout_seconds=60.0) as pool:
        yield pool


def opened(pool: EpisodePool, name: str, played: list[Played] | None = None) -> Any:
    environment = EnvironmentSpec(f"./game.py:{name}")
    return conversations(pool).open(environment, {"wanted": 3}, played or [])  # type: ignore[arg-type]


def lose(conversation: Any) -> None:
    """Kills the process from outside."""
    assert isinstance(conversation._episode, HostedEpisode) and conversation._episode._process is not None
    process = psutil.Process(conversation._episode._process.process)
    os.kill(process.pid, signal.SIGKILL)
    assert not wait_for_end([process])


async def test_a_process_that_is_lost_between_two_turns_costs_nothing_but_a_retry(pool: EpisodePool) -> None:
    async with opened(pool, "Counts") as conversation:
        for _ in range(2):
            found = await conversation.answer([1], Finish.STOP, 0)
            assert isinstance(found, Observed) and found.tokens == OBSERVED
            lose(conversation)
        end = await conversation.answer([1], Finish.STOP, 0)
        assert isinstance(end, Ended) and end.verdict.outcome is Outcome.CORRECT
        assert conversation.run.tally.counts["environment_faults"] == 2


async def test_a_restart_plays_what_the_journal_has(pool: EpisodePool) -> None:
    async with opened(pool, "Counts") as conversation:
        await conversation.answer([1], Finish.STOP, 0)
        await conversation.answer([2], Finish.STOP, 0)
        played = list(conversation.played)
    async with opened(pool, "Counts", played) as conversation:
        end = await conversation.answer([3], Finish.STOP, 0)
        assert isinstance(end, Ended) and end.verdict.outcome is Outcome.CORRECT


async def test_a_process_that_cannot_be_played_again_is_a_fault_once_it_is_lost(pool: EpisodePool) -> None:
    async with opened(pool, "Neither") as conversation:
        await conversation.answer([1], Finish.STOP, 0)
        lose(conversation)
        end = await conversation.answer([1], Finish.STOP, 0)
        # It was given a turn: no other process can continue it, so none is started.
        assert end.verdict.outcome is Outcome.FAULT and "SIGKILL" in end.verdict.detail


async def test_a_bug_is_a_fault_with_its_traceback_after_a_retry(pool: EpisodePool) -> None:
    async with opened(pool, "Counts") as conversation:
        end = await conversation.answer([9], Finish.STOP, 0)
        assert end.verdict.outcome is Outcome.FAULT and "step raised KeyError" in end.verdict.detail
        assert "game.py" in end.verdict.trace and conversation.run.tally.counts["environment_faults"] == 2


class CallsByNumber:
    """A turn of 5 calls `count`, one of 6 has `odd` hang, one of 7 has it say something."""

    stop: tuple[str, ...] = ()
    is_inline = False

    def parse(self, turn: Sequence[int]) -> list[Call]:
        arguments = {6: {"do": "sleep"}, 7: {"do": "say"}}.get(turn[0])
        return [Call("count") if arguments is None else Call("odd", arguments)]


async def test_tools_are_played_again_from_where_they_lost_their_state_and_stateless_ones_are_not(
    tmp_path: Path,
) -> None:
    async with EpisodePool(tools=turn_tools.named("count", "odd"), timeout_seconds=1.0) as pool:
        run = dataclasses.replace(conversations(pool, max_turns=9), calls=CallsByNumber())  # type: ignore[arg-type]
        async with run.open(None, {}) as conversation:
            said = []
            for number in (5, 6, 5, 7, 5):
                found = await conversation.answer([number], Finish.STOP, 0)
                assert isinstance(found, Observed)
                said.append(json.loads(found.notes))
            lose(conversation)
            found = await conversation.answer([5], Finish.STOP, 0)
            contents = [notes["messages"][0]["content"] for notes in [*said, json.loads(found.notes)]]
            assert contents[0::2] == ["1", "1", "2"] and contents[5] == "3"
            assert "lost their state" in contents[1]
            assert [note.get("losses") for note in said][:2] == [
                None,
                [0],
            ]
            # Played again, `odd` would have hung once more.
            assert pool.num_killed == 1


async def test_a_call_of_a_tool_that_the_recipe_lacks_is_counted_with_its_name() -> None:
    episodes = FakeEpisodes(lambda turn, text: End())
    run = dataclasses.replace(conversations(episodes), calls=CallsByNumber())
    async with run.open(None, {}) as conversation:
        await conversation.answer([5], Finish.STOP, 0)
    row = run.tally.row()
    assert row["unknown_tool_calls"] == 1 and "(the first: 'count', of tool)" in row["causes"]


async def test_each_conversation_gives_its_place_back(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(GAME)
    async with EpisodePool(folder=tmp_path, timeout_seconds=60.0, max_processes=1) as pool:
        for text in (1, 9, 1):
            async with opened(pool, "Counts") as conversation:
                await conversation.answer([text], Finish.STOP, 0)
