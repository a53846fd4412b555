"""Trajectories of several turns, on a fake engine and fake environments."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.clock import Clock
from fakes.engine import STOP, FakeEngine
from fakes.episodes import OBSERVED, FakeEpisodes, conversations
from fakes.fleets import generating
from fakes.records import make_queue, make_task, reopen

from asyncrl.errors import InputError
from asyncrl.journal.reader import JournalReader
from asyncrl.loops import background
from asyncrl.recipe import Algorithm
from asyncrl.records import (
    DropReason,
    EnvironmentSpec,
    Finish,
    Observed,
    SamplingParams,
    Segment,
    Task,
    Trajectory,
)
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.credits import Shaping
from asyncrl.rollout.drain import Drain
from asyncrl.rollout.generate import GenerationFailed
from asyncrl.rollout.request_rules import OpenTurns
from asyncrl.rollout.turn_player import TurnPlayer
from asyncrl.serving.sglang.health import Capacity
from asyncrl.system.plugins import MIN_SECONDS, PAUSE_SECONDS, FaultsInARow
from asyncrl.turns.environment import End, Observation, Recovery
from asyncrl.turns.episode import EnvironmentFault, Episode, TurnLimit
from asyncrl.turns.tally import EnvironmentFailed, TurnFaults

TURN = [30, 31, STOP]
NUM_PROMPT = 3


def task() -> Task:
    return dataclasses.replace(make_task(), environment=EnvironmentSpec("game"), row={"secret": 7})


def three_turns(turn: int, text: str) -> Observation | End:
    return End(1.0, "guessed") if turn == 2 else Observation(f"not {text}")


@asynccontextmanager
async def player_of(
    folder: Path, episodes: FakeEpisodes, *, queue: ReplayQueue | None = None, **limits: int
) -> AsyncIterator[tuple[TurnPlayer, Group, FakeEngine]]:
    """A player whose engine writes the same turn again and again."""
    engine = FakeEngine(num_tokens=100)
    engine.script = (TURN + OBSERVED) * 10
    asked: dict[str, Any] = {"queue": queue, "task": task(), "turns": OpenTurns()}
    async with generating(folder, SamplingParams(1.0, 64, (STOP,)), engine=engine, **asked) as run:
        generator = run.generator
        shaping = Shaping(Algorithm(), generator.limits)
        played = conversations(episodes, **limits)
        yield TurnPlayer(run.queue, generator, played, shaping, generator.waits), run.group, engine


async def play(player: TurnPlayer, group: Group) -> list[Trajectory]:
    return [trajectory async for trajectory in player.run(group)]


def failing(error: Exception, recovery: Recovery = Recovery.REPLAYABLE) -> FakeEpisodes:
    def fails(turn: int, text: str) -> Observation | End:
        raise error

    return FakeEpisodes(fails, recovery)


async def answering(player: TurnPlayer, count: int = 2) -> None:
    while len(player.answering) < count:
        await asyncio.sleep(0)


@dataclasses.dataclass
class AtWork:
    """A group that is played, and whose tools work on the first turn of both trajectories until they may
    answer."""

    player: TurnPlayer
    group: Group
    engine: FakeEngine
    episodes: FakeEpisodes
    work: "asyncio.Task[list[Trajectory]]"


@asynccontextmanager
async def at_work(folder: Path, **limits: int) -> AsyncIterator[AtWork]:
    episodes = FakeEpisodes(three_turns)
    episodes.may_answer.clear()
    async with player_of(folder, episodes, **limits) as (player, group, engine):
        assert not player.is_answering_in_time()
        work = asyncio.create_task(play(player, group))
        await answering(player)
        yield AtWork(player, group, engine, episodes, work)


async def test_turns_are_sampled_and_answers_are_observed_until_the_environment_ends(tmp_path: Path) -> None:
    episodes = FakeEpisodes(three_turns)
    async with player_of(tmp_path, episodes) as (player, group, engine):
        ended = await play(player, group)
        assert sorted(t.trajectory_id for t in ended) == [t.trajectory_id for t in group.trajectories]
        for trajectory in ended:
            assert trajectory.response_tokens() == TURN + OBSERVED + TURN + OBSERVED + TURN
            assert trajectory.turns() == [TURN] * 3 and trajectory.finish is Finish.STOP
            assert group.scores[trajectory.trajectory_id].correctness == 1.0
        assert {episode.texts[0] for episode in episodes.opened} == {"30 31 1"}
        assert all(episode.row == {"secret": 7} and episode.is_closed for episode in episodes.opened)
        assert player.queue.conservation()["generated"] == 2 * 9
        assert player.generator.turns and not player.generator.turns.servers and not player.answering


async def test_an_end_without_a_score_is_left_to_the_rows_verifier(tmp_path: Path) -> None:
    async with player_of(tmp_path, FakeEpisodes(lambda turn, text: End())) as (player, group, engine):
        assert len(await play(player, group)) == 2 and not group.scores


async def test_the_last_turn_is_answered_for_its_score_and_no_turn_follows(tmp_path: Path) -> None:
    episodes = FakeEpisodes(lambda turn, text: Observation("again"))
    async with player_of(tmp_path, episodes, max_turns=3) as (player, group, engine):
        (first, _) = await play(player, group)
        assert len(first.turns()) == 3 and first.finish is Finish.LENGTH
        assert first.response_tokens() == TURN + OBSERVED + TURN + OBSERVED + TURN


async def test_an_observation_that_fills_the_context_ends_the_trajectory(tmp_path: Path) -> None:
    async with player_of(tmp_path, FakeEpisodes(three_turns)) as (player, group, engine):
        player.generator.limits.context_tokens = NUM_PROMPT + len(TURN) + len(OBSERVED)
        (first, _) = await play(player, group)
        assert first.turns() == [TURN, []] and first.finish is Finish.LENGTH
        assert first.answer_tokens() == TURN
        row = player.conversations.tally.row()
        assert row["empty_turns"] == 2 and "turns without room for a token: 2 (the first: " in row["causes"]


async def test_a_fault_is_retried_with_a_new_environment_that_replays_what_was_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([True])

    def fails_once(turn: int, text: str) -> Observation | End:
        if turn == 1 and next(failures, False):
            raise EnvironmentFault("it broke")
        return three_turns(turn, text)

    episodes = FakeEpisodes(fails_once)
    async with player_of(tmp_path, episodes) as (player, group, engine):
        await play(player, group)
        assert [score.outcome for score in group.scores.values()] == ["correct"] * 2
        assert len(episodes.opened) == 3 and player.conversations.tally.counts["environment_faults"] == 1
    (warning,) = caplog.messages
    assert warning.startswith('the environment "game" failed and is asked again in a new process: it broke.')


@pytest.mark.parametrize(
    ("error", "outcome"), [(EnvironmentFault("it broke"), "fault"), (TurnLimit("too slow"), "wrong")]
)
async def test_a_fault_has_no_score_and_a_turn_over_its_limit_is_wrong(
    tmp_path: Path, error: Exception, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with player_of(tmp_path, failing(error)) as (player, group, engine):
        await play(player, group)
        assert [score.outcome for score in group.scores.values()] == [outcome] * 2
    # Two trajectories, one cause; a limit is the response's doing.
    told = [words for words in caplog.messages if "gave no answer to a turn: it broke" in words]
    assert len(told) == (outcome == "fault")


async def test_an_environment_that_no_longer_answers_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    clock = Clock()

    def fails(turn: int, text: str) -> Observation | End:
        clock.seconds += MIN_SECONDS / 2
        raise EnvironmentFault("step raised KeyError: 'a'", "Traceback: game.py, line 7")

    async with player_of(tmp_path, FakeEpisodes(fails)) as (player, group, engine):
        player.conversations.faults = TurnFaults(FaultsInARow(3, clock))
        with pytest.raises(EnvironmentFailed) as raised:
            await play(player, group)
        words = str(raised.value)
        assert words.startswith('the environment "game" failed 3 times in a row (turns.max_faults_in_a_row)')
        assert "step raised KeyError: 'a'" in words and "game.py, line 7" in words
        # The run resumes with it.
        assert group.state is GroupState.OPEN and len(group.scores) < 2


async def test_an_answer_or_a_limit_between_faults_ends_nothing(tmp_path: Path) -> None:
    clock, num_asked = Clock(), itertools.count()

    def fails_twice_then_is_late(turn: int, text: str) -> Observation | End:
        clock.seconds += MIN_SECONDS
        # Both trajectories fail once; what each is asked then is over its limit.
        raise EnvironmentFault("it broke") if next(num_asked) < 2 else TurnLimit("too slow")

    async with player_of(tmp_path, FakeEpisodes(fails_twice_then_is_late)) as (player, group, engine):
        faults = player.conversations.faults = TurnFaults(FaultsInARow(3, clock))
        await play(player, group)
        assert {score.outcome for score in group.scores.values()} <= {"wrong", "fault"}
        assert player.conversations.tally.counts["environment_faults"] == 2
    for _ in range(2):
        faults.failed('the environment "game"', "it broke", "")
    with pytest.raises(EnvironmentFailed):
        clock.seconds += MIN_SECONDS
        faults.failed('the environment "game"', "it broke", "")


async def test_an_environment_that_fails_at_once_is_asked_slowly_until_the_run_ends(tmp_path: Path) -> None:
    async with player_of(tmp_path, failing(EnvironmentFault("it broke"))) as (player, group, engine):
        watched = player.conversations.faults = TurnFaults(FaultsInARow(2, Clock()))
        await play(player, group)
        assert watched.in_a_row.pause_seconds('the environment "game"') == PAUSE_SECONDS
        watched.answered('the environment "game"')
        assert watched.in_a_row.pause_seconds('the environment "game"') == 0.0


async def test_an_environment_that_never_starts_is_named_by_its_start(tmp_path: Path) -> None:
    clock, episodes = Clock(), FakeEpisodes(three_turns)

    async def refuses(environment: object) -> Episode:
        clock.seconds += MIN_SECONDS
        raise EnvironmentFault("its server is away")

    episodes.open = refuses  # type: ignore[method-assign]
    async with player_of(tmp_path, episodes) as (player, group, engine):
        player.conversations.faults = TurnFaults(FaultsInARow(2, clock))
        with pytest.raises(EnvironmentFailed, match='the start of the environment "game" failed 2 times'):
            await play(player, group)


def reopened(folder: Path, messages: list[dict[str, str]]) -> ReplayQueue:
    """The queue of a run that was killed when both trajectories had `messages` for their first turn."""
    queue = make_queue(folder)
    queue.announce(0)
    group = queue.admit(task())
    notes = json.dumps({"seconds": 0.5, "messages": messages})
    for trajectory in group.trajectories:
        queue.append(group, trajectory, [Segment(0, list(TURN), [-1.0] * 3)], None)
        trajectory.turn_finish = Finish.STOP
        queue.observe(group, trajectory, Observed(list(OBSERVED), notes))
    again = reopen(queue, folder)
    again.live[0].task = task()
    return again


@pytest.mark.parametrize("recovery", list(Recovery))
async def test_a_restart_continues_after_the_answers_in_the_journal(
    tmp_path: Path, recovery: Recovery
) -> None:
    again = reopened(tmp_path, [{"role": "user", "content": "not 30 31 1"}])
    episodes = FakeEpisodes(three_turns, recovery)
    async with player_of(tmp_path, episodes, queue=again) as (player, group, engine):
        (first, _) = await play(player, group)
        score = group.scores[first.trajectory_id]
        texts = episodes.opened[0].texts
    if recovery is Recovery.REPLAYABLE:
        assert score.outcome == "correct" and len(texts) == 3
    elif recovery is Recovery.STATELESS:
        assert score.outcome == "correct" and len(texts) == 3 and len(first.turns()) == 4
    else:
        assert score.outcome == "fault" and "cannot be played again" in score.detail


async def test_an_environment_that_answers_otherwise_when_replayed_is_a_fault(tmp_path: Path) -> None:
    async with player_of(tmp_path, FakeEpisodes(three_turns), queue=reopened(tmp_path, [])) as (
        player,
        group,
        engine,
    ):
        await play(player, group)
        assert all("answered otherwise" in score.detail for score in group.scores.values())


async def test_while_a_tool_works_its_server_has_a_free_slot(tmp_path: Path) -> None:
    async with at_work(tmp_path) as run:
        assert run.player.generator.fleet.router.num_in_flight == 0
        told = run.player.waits.describe_waits()
        assert 'waits for the answer to its turn by the environment "game"' in told
        run.episodes.may_answer.set()
        assert len(await run.work) == 2


async def test_an_answer_that_comes_after_its_group_was_dropped_is_not_recorded(tmp_path: Path) -> None:
    async with at_work(tmp_path) as run:
        run.player.queue.drop(run.group, DropReason.STALE)
        run.episodes.may_answer.set()
        assert await run.work == []
        assert all(episode.is_closed for episode in run.episodes.opened)
        run.player.queue.journal.barrier_blocking()
        reader = JournalReader(run.player.queue.journal.path)
        assert reader.read("SELECT count(*) FROM observations") == [(0,)]


async def test_an_environment_rewards_turns_and_the_end_keeps_the_rewards(tmp_path: Path) -> None:
    def rewarding(turn: int, text: str) -> Observation | End:
        return End(1.0) if turn == 2 else Observation("on", reward=0.25 * (turn + 1))

    async with player_of(tmp_path, FakeEpisodes(rewarding)) as (player, group, _):
        await play(player, group)
        for score in group.scores.values():
            assert (score.reward, score.credits) == (1.0, [(2, 0.25), (5, 0.5)])


@pytest.mark.parametrize("reward", [float("nan"), 1e7, True, "0.5", float("inf")])
async def test_a_reward_of_a_turn_that_is_no_number_in_range_is_a_fault(tmp_path: Path, reward) -> None:
    episodes = FakeEpisodes(lambda turn, text: Observation("on", reward=reward))
    async with player_of(tmp_path, episodes) as (player, group, _):
        await play(player, group)
        for score in group.scores.values():
            assert score.outcome == "fault" and not score.credits
            assert "the reward of an Observation is" in score.detail


async def test_the_score_of_an_environment_and_the_end_are_one_transaction(tmp_path: Path) -> None:
    async with player_of(tmp_path, FakeEpisodes(lambda turn, text: End(0.0, "no"))) as (player, group, _):
        written = []
        journal = player.queue.journal
        player.queue.journal = SimpleNamespace(  # type: ignore[assignment]
            write=lambda *rows: (written.append(rows), journal.write(*rows))
        )
        await play(player, group)
        player.queue.journal = journal
        ends = [rows for rows in written if any("SET finish" in sql for sql, _ in rows)]
        assert len(ends) == 2 and all(any("SET outcome" in sql for sql, _ in rows) for rows in ends)


async def test_the_environments_of_a_group_that_is_dropped_close_at_once_and_its_tools_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = iter(range(0, 1000, 7))
    episodes = FakeEpisodes(three_turns)
    queue = make_queue(tmp_path, abort_staleness=0)
    async with player_of(tmp_path, episodes, queue=queue) as (player, group, engine):
        queue._changed = player.waits.notify
        player.conversations.clock = lambda: float(next(seconds))
        async with background(player.loop(), "turns"):
            work = asyncio.create_task(play(player, group))
            await answering(player)
            # Both have an answer; the next one takes until their tokens of version 0 are too old.
            while any(trajectory.num_observations() < 1 for trajectory in group.trajectories):
                await asyncio.sleep(0)
            episodes.may_answer.clear()
            await answering(player)
            queue._drop_stale([group], 1)
            assert await work == []
        assert all(episode.is_closed for episode in episodes.opened) and not player.answering
    (told, *_) = [record.message for record in caplog.records if "stale" in record.message]
    assert "rollout.abort_staleness" in told and "s of its environment and tools" in told
    assert queue.conservation()["dropped: stale"] == group.num_tokens()


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_the_end_of_a_run_abandons_answers_and_a_stop_records_those_that_still_come(
    tmp_path: Path, is_stopped: bool
) -> None:
    async with at_work(tmp_path) as run:
        state = run.player.generator.state
        async with background(run.player.loop(), "turns"):
            state.stop() if is_stopped else state.end_training()
            if is_stopped:
                await asyncio.sleep(0)
                assert len(run.player.answering) == 2
                run.episodes.may_answer.set()
            assert await run.work == []
        assert [t.num_observations() for t in run.group.trajectories] == [int(is_stopped)] * 2
        assert all(episode.is_closed for episode in run.episodes.opened)


async def test_an_environment_that_cannot_be_played_again_is_asked_no_turn_twice(tmp_path: Path) -> None:
    episodes = failing(EnvironmentFault("it broke"), Recovery.NEITHER)
    async with player_of(tmp_path, episodes, num_fault_retries=3) as (player, group, engine):
        await play(player, group)
        assert [score.detail for score in group.scores.values()] == ["environment: it broke"] * 2
        assert len(episodes.opened) == 2


async def test_servers_that_fail_on_one_trajectory_end_the_waits_of_its_group(tmp_path: Path) -> None:
    episodes = FakeEpisodes(three_turns)
    episodes.may_answer.clear()
    async with player_of(tmp_path, episodes) as (player, group, engine):
        one, _ = group.trajectories
        run = player.generator.run

        async def fails_for_one(group: Group, asked: list[Trajectory]) -> AsyncIterator[Trajectory]:
            if asked == [one]:
                await answering(player, 1)
                raise GenerationFailed("its server died")
            async for trajectory in run(group, asked):
                yield trajectory

        player.generator.run = fails_for_one  # type: ignore[assignment]
        with pytest.raises(GenerationFailed):
            await play(player, group)
        assert not player.answering and all(episode.is_closed for episode in episodes.opened)


async def test_a_tool_is_in_time_until_a_replay_and_its_answer_are_late(tmp_path: Path) -> None:
    async with at_work(tmp_path, max_tool_seconds=1000) as run:
        player = run.player
        assert player.is_answering_in_time() and player.num_answered() == 0
        for name, answer in player.answering.items():
            player.answering[name] = dataclasses.replace(answer, since_seconds=answer.since_seconds - 2001)
        assert not player.is_answering_in_time()
        run.episodes.may_answer.set()
        await run.work
        assert player.num_answered() == 6


async def test_an_answer_that_comes_while_nothing_may_stream_is_recorded_and_its_turn_waits(
    tmp_path: Path,
) -> None:
    async with at_work(tmp_path) as run:
        generator = run.player.generator
        # As when the servers sleep, the trainer went back, or a round is over.
        generator.state.hold_streams()
        run.episodes.may_answer.set()
        while generator.num_waiting < 2:
            await asyncio.sleep(0)
        assert [t.num_observations() for t in run.group.trajectories] == [1, 1]
        assert len(run.engine.bodies) == 2 and generator.fleet.router.num_in_flight == 0
        generator.state.release_streams()
        assert len(await run.work) == 2


@pytest.mark.parametrize("is_drained", [True, False])
async def test_a_drain_waits_for_tools_and_for_the_turns_that_follow(
    tmp_path: Path, is_drained: bool
) -> None:
    async with at_work(tmp_path) as run:
        generator, queue = run.player.generator, run.player.queue
        drain = Drain(queue, generator.fleet, generator, run.player.waits)
        router = generator.fleet.router
        router.start_drain()
        assert router.num_in_flight == 0 and not drain.is_idle()
        assert router.pick(1, is_new=True) is None
        if is_drained:
            run.episodes.may_answer.set()
            assert [len(trajectory.turns()) for trajectory in await run.work] == [3, 3]
        else:
            queue.drop(run.group, DropReason.STALE)
        assert drain.is_idle()
        run.work.cancel()
        await asyncio.gather(run.work, return_exceptions=True)


async def test_a_conversation_that_outgrows_a_servers_cache_waits_for_an_idle_one_and_ends(
    tmp_path: Path,
) -> None:
    episodes = FakeEpisodes(lambda turn, text: End(1.0) if turn == 5 else Observation("again"))
    async with player_of(tmp_path, episodes, max_turns=9) as (player, group, engine):
        (server,) = player.generator.fleet.members.servers.values()
        # Room for the prompt and two turns of one trajectory.
        server.capacity = Capacity(cache_tokens=12, running_requests=100)
        async with asyncio.timeout(300):
            ended = await play(player, group)
        assert [len(trajectory.turns()) for trajectory in ended] == [6, 6]
        assert (server.expected_tokens, server.held_tokens, server.num_running) == (0, 0, 0)


async def test_what_was_observed_counts_for_the_room_a_turn_needs(tmp_path: Path) -> None:
    async with player_of(tmp_path, FakeEpisodes(three_turns)) as (player, group, engine):
        generator, first = player.generator, group.trajectories[0]
        for _ in range(64):
            generator.load.lengths.add(10)
        assert generator.load.tokens(group, [first]) == NUM_PROMPT + 10
        for _ in range(64):
            generator.load.lengths.add(12)
        for _ in range(2):
            player.queue.append(group, first, [Segment(0, list(TURN), [-1.0] * 3)], None)
            first.turn_finish = Finish.STOP
            player.queue.observe(group, first, Observed([50] * 9))
        # 24 tokens are there; the next turn is expected to have 11, as turns had lately.
        assert generator.load.tokens(group, [first]) == NUM_PROMPT + 24 + 11


async def test_messages_that_no_template_writes_are_the_environments_fault(
    tmp_path: Path,
) -> None:
    async with player_of(tmp_path, FakeEpisodes(lambda turn, text: Observation("x"))) as (player, group, _):

        def refuses(turn: list[int], messages: list[object]) -> list[int]:
            raise InputError("the chat template does not accept these messages")

        player.conversations.dialogue.answer = refuses  # type: ignore[method-assign,assignment]
        await play(player, group)
        assert {score.outcome for score in group.scores.values()} == {"fault"}
        assert all("cannot be written" in score.detail for score in group.scores.values())


async def test_an_answer_longer_than_any_observation_is_recorded_without_its_middle(tmp_path: Path) -> None:
    long = FakeEpisodes(lambda turn, text: Observation("a" * 10**6) if turn < 1 else End(1.0))
    async with player_of(tmp_path, long) as (player, group, _):
        (first, _) = await play(player, group)
        (observed,) = [part for part in first.segments if isinstance(part, Observed)]
        (message,) = json.loads(observed.notes)["messages"]
        assert len(message["content"]) < 210_000 and "characters were left out" in message["content"]
