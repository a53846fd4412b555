"""Trajectories from the start of an agent to its end: exits, deadlines, verdicts, restarts."""

import asyncio
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import Client, agents_on
from fakes.chat_codec import END
from fakes.clock import Clock
from fakes.records import make_queue, make_score, make_task, reopen

from asyncrl.errors import StalenessBreach
from asyncrl.journal.conservation import read_conservation
from asyncrl.journal.packing import sequences_of
from asyncrl.journal.queue_state import load_groups
from asyncrl.records import DropReason, Finish
from asyncrl.replay.group import GroupState
from asyncrl.rollout.agents.player import AgentFailed
from asyncrl.rollout.agents.process import Exit
from asyncrl.rollout.generate import GenerationFailed
from asyncrl.system.plugins import MIN_SECONDS, FaultsInARow

ASKED = {"role": "user", "content": "Guess."}
NEXT = {"role": "user", "content": "lower"}


def counted(text: str) -> str:
    return f"turn {text.count('<|im_start|>assistant')}{END}"


async def two_turns(client: Client) -> None:
    first = await client.say([ASKED])
    await client.say([ASKED, {"role": "assistant", "content": first["content"]}, NEXT])


async def test_an_agent_that_never_calls_leaves_an_empty_answer_to_the_verifier(tmp_path: Path) -> None:
    async def silent(client: Client) -> None:
        pass

    async with agents_on(tmp_path, silent, counted) as run:
        (trajectory,) = await run.play()
        assert trajectory.finish is Finish.STOP and trajectory.answer_tokens() == []
        assert not run.group.scores


async def test_a_crash_is_retried_with_its_calls_answered_from_the_record(tmp_path: Path) -> None:
    crashes = iter([True])

    async def crashes_once(client: Client) -> None:
        await two_turns(client)
        if next(crashes, False):
            raise RuntimeError("no network")

    async with agents_on(tmp_path, crashes_once, counted) as run:
        (trajectory,) = await run.play()
        assert not run.group.scores and run.player.recorder.tally.counts["agent_faults"] == 1
        assert len(run.engine.bodies) == 2 and len(trajectory.turns()) == 2 and not trajectory.branches


async def test_an_agent_that_keeps_crashing_is_a_fault_without_a_score(tmp_path: Path) -> None:
    async def crashes(client: Client) -> None:
        await client.say([ASKED])
        raise RuntimeError("no network")

    async with agents_on(tmp_path, crashes, counted) as run:
        (trajectory,) = await run.play()
        score = run.group.scores[trajectory.trajectory_id]
        assert (score.outcome, score.reward) == ("fault", None)
        assert "exit code 1. no network" in score.detail and run.programs.num_started == 2


async def test_the_greedy_baseline_is_made_by_an_agent_too(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, samples=2, has_greedy=True)
    async with agents_on(tmp_path, two_turns, counted, queue=queue) as run:
        played = await run.play()
        assert len(played) == 3 and [len(trajectory.turns()) for trajectory in played] == [2, 2, 2]
        temperatures = [body["sampling_params"][0]["temperature"] for body in run.engine.bodies]
        assert sorted(temperatures) == [0.0] * 2 + [1.0] * 4


async def test_an_agent_that_never_ends_well_ends_the_run_with_what_it_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()

    async def crashes(client: Client) -> None:
        clock.seconds += MIN_SECONDS / 2
        raise RuntimeError("ModuleNotFoundError: no openai")

    async with agents_on(tmp_path, crashes, counted, samples=2) as run:
        run.player.faults = FaultsInARow(3, clock)
        with pytest.raises(AgentFailed) as raised:
            await run.play()
        words = str(raised.value)
        assert "failed 3 times in a row (agent.max_faults_in_a_row)" in words and "no openai" in words
        assert run.group.state is GroupState.OPEN and not run.player.recorder.sessions
    assert sum("the agent's program failed on train:" in message for message in caplog.messages) == 1


async def test_an_agent_that_ends_well_between_crashes_ends_nothing(tmp_path: Path) -> None:
    clock, crashes = Clock(), itertools.cycle([True, False])

    async def crashes_half_of_the_time(client: Client) -> None:
        clock.seconds += MIN_SECONDS
        if next(crashes):
            raise RuntimeError("no network")

    async with agents_on(tmp_path, crashes_half_of_the_time, counted, samples=4, max_agents=1) as run:
        run.player.faults = FaultsInARow(2, clock)
        assert (
            len(await run.play()) == 4
            and run.player.recorder.tally.counts["agent_faults"] == 4
            and not run.group.scores
        )


async def test_an_agent_over_its_own_time_is_wrong(tmp_path: Path) -> None:
    async def hangs(client: Client) -> None:
        await client.say([ASKED])
        await asyncio.Event().wait()

    async with agents_on(tmp_path, hangs, counted, timeout_seconds=0.05) as run:
        (trajectory,) = await run.play()
        score = run.group.scores[trajectory.trajectory_id]
        assert score.outcome == "wrong" and "agent.timeout_seconds" in score.detail
        assert run.programs.num_started == 1


@pytest.mark.parametrize(("given", "outcome"), [(1.0, "correct"), (0.25, "wrong")])
async def test_an_agent_may_give_the_verdict(tmp_path: Path, given: float, outcome: str) -> None:
    async def judges(client: Client) -> float:
        await client.say([ASKED])
        return given

    async with agents_on(tmp_path, judges, counted) as run:
        (trajectory,) = await run.play()
        score = run.group.scores[trajectory.trajectory_id]
        assert (score.outcome, score.correctness) == (outcome, given)


async def test_a_call_that_no_one_waits_for_at_the_end_is_dropped_as_abandoned(tmp_path: Path) -> None:
    async with agents_on(tmp_path, two_turns, counted) as run:

        async def leaves_one(client: Client) -> None:
            await two_turns(client)
            run.engine.hold()
            asyncio.get_running_loop().create_task(client.say([NEXT])).add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )
            while run.engine.num_running == 0:
                await asyncio.sleep(0)

        run.programs.agent = leaves_one
        (trajectory,) = await run.play()
        assert not trajectory.branches and len(trajectory.calls) == 2 and not run.group.scores
        assert not run.player.recorder.sessions


async def test_a_group_that_is_dropped_ends_its_agents(tmp_path: Path) -> None:
    async def hangs(client: Client) -> None:
        await client.say([ASKED])
        await asyncio.Event().wait()

    async with agents_on(tmp_path, hangs, counted, samples=2) as run:
        work = asyncio.create_task(run.play())
        while sum(len(t.calls) for t in run.group.trajectories) < 2:
            await asyncio.sleep(0)
        run.queue.drop(run.group, DropReason.STALE)
        assert await work == [] and run.group.state is GroupState.DROPPED
        assert not run.player.recorder.sessions


async def test_an_error_behind_the_endpoint_is_raised_and_never_waited_for(tmp_path: Path) -> None:
    async with agents_on(tmp_path, two_turns, counted) as run:
        run.group.admitted_version = 5
        with pytest.raises(StalenessBreach, match="version 0 after version 5"):
            await run.play()
        assert not run.player.recorder.sessions


async def test_servers_that_keep_failing_are_told_to_the_group(tmp_path: Path) -> None:
    async with agents_on(tmp_path, two_turns, counted) as run:
        run.player.recorder.generator.max_retries = 0
        run.engine.break_streams = 100
        with pytest.raises(GenerationFailed):
            await run.play()


async def interrupted(folder: Path, agent: object, num_calls: int) -> tuple[object, int]:
    """The queue of a run that was killed after that many calls, opened again; and the tokens it had."""
    async with agents_on(folder, agent, counted) as run:  # type: ignore[arg-type]
        work = asyncio.create_task(run.play())
        (trajectory,) = run.group.trajectories
        while len(trajectory.calls) < num_calls or any(t.turn_finish is None for t in trajectory.lines()):
            await asyncio.sleep(0)
        run.player.state.stop()
        await work
        tokens = trajectory.num_sampled_in_all()
        queue = run.queue
    again = reopen(queue, folder, samples=1)
    again.live[0].task = make_task()
    return again, tokens


async def hangs_after_two(client: Client) -> None:
    await two_turns(client)
    await asyncio.Event().wait()


async def asks_at_once(client: Client) -> None:
    await client.chat([ASKED], n=2)
    await asyncio.gather(*(client.say([NEXT]) for _ in range(2)))


async def asks_at_once_and_hangs(client: Client) -> None:
    await asks_at_once(client)
    await asyncio.Event().wait()


async def test_equal_calls_at_once_find_a_reply_each_after_a_restart(tmp_path: Path) -> None:
    queue, tokens = await interrupted(tmp_path, asks_at_once_and_hangs, 4)
    async with agents_on(tmp_path, asks_at_once, counted, queue=queue) as run:  # type: ignore[arg-type]
        (trajectory,) = await run.play()
        assert not run.engine.bodies and not run.group.scores
        assert len(trajectory.lines()) == 4 and trajectory.num_sampled_in_all() == tokens


async def test_a_turn_that_a_restart_cut_off_is_sampled_to_its_end(tmp_path: Path) -> None:
    async with agents_on(tmp_path, two_turns, counted) as run:
        work = asyncio.create_task(run.play())
        (trajectory,) = run.group.trajectories
        while trajectory.num_turn_tokens() < 4:
            await asyncio.sleep(0)
        run.engine.hold()
        run.player.state.stop()
        await work
        queue = run.queue
    again = reopen(queue, tmp_path, samples=1)
    (trajectory,) = again.live[0].trajectories
    begun = trajectory.num_sampled_tokens()
    async with agents_on(tmp_path, two_turns, counted, queue=again) as run:
        (trajectory,) = await run.play()
        assert [run.codec.exact_text(turn) for turn in trajectory.turns()] == [
            f"turn 1{END}",
            f"turn 2{END}",
        ]
        assert 0 < begun < len(trajectory.turns()[0]) and not trajectory.branches
        assert run.queue.conservation()["generated"] == trajectory.num_sampled_tokens()


async def test_what_a_restart_does_not_ask_for_again_is_dropped_as_abandoned(tmp_path: Path) -> None:
    queue, _ = await interrupted(tmp_path, hangs_after_two, 2)

    async def other_way(client: Client) -> None:
        first = await client.say([ASKED])
        other = {"role": "user", "content": "higher"}
        await client.say([ASKED, {"role": "assistant", "content": first["content"]}, other])

    async with agents_on(tmp_path, other_way, counted, queue=queue) as run:  # type: ignore[arg-type]
        (trajectory,) = await run.play()
        (branch,) = trajectory.branches
        assert len(trajectory.turns()) == 1 and "higher" in run.text(branch)
        fates = run.queue.conservation()
        dropped = fates[f"dropped: {DropReason.ABANDONED}"]
        assert dropped == len(f"turn 2{END}") - len(END) + 1
        assert fates["generated"] == dropped + trajectory.num_sampled_in_all()
        run.queue.journal.barrier_blocking()
        assert read_conservation(run.queue.journal.path) == fates
    again = reopen(run.queue, tmp_path, samples=1)
    (restored,) = again.live[0].trajectories
    assert restored.segments == trajectory.segments and restored.calls == trajectory.calls
    assert [b.segments for b in restored.branches] == [branch.segments]


async def test_branches_are_sequences_with_the_advantage_of_their_trajectory(tmp_path: Path) -> None:
    async def forks(client: Client) -> None:
        first = {"role": "assistant", "content": (await client.say([ASKED]))["content"]}
        await client.say([ASKED, first, NEXT])
        await client.say([ASKED, first, ASKED])

    async with agents_on(tmp_path, forks, counted, samples=2) as run:
        trajectories = sorted(await run.play(), key=lambda each: each.trajectory_id)
        for i, trajectory in enumerate(trajectories):
            run.queue.score(run.group, trajectory, make_score(float(i)), "text")
        run.queue.make_ready(run.group, {t.trajectory_id: 2.0 * i - 1.0 for i, t in enumerate(trajectories)})
        found = sequences_of(run.group)
        assert [(s.sequence_id, s.advantage) for s in found] == [
            ("00000000-00", -1.0),
            ("00000000-00.1", -1.0),
            ("00000000-01", 1.0),
            ("00000000-01.1", 1.0),
        ]
        assert sum(s.num_sampled() for s in found) == run.queue.conservation()["queued"]
        other = run.queue.admit(make_task(2))
        for i, trajectory in enumerate(other.trajectories):
            trajectory.finish = Finish.STOP
            run.queue.score(other, trajectory, make_score(float(i)), "")
        run.queue.make_ready(other, {t.trajectory_id: 1.0 for t in other.trajectories})
        taken = run.queue.take(0)
        assert taken is not None
        run.queue.journal.barrier_blocking()
        loaded = list(load_groups(run.queue.journal, 0))
        assert loaded == [sequences_of(group) for group in taken]
        assert read_conservation(run.queue.journal.path) == run.queue.conservation()


async def test_an_agent_whose_process_another_one_took_along_is_started_again_without_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([True])

    async def is_lost_once(client: Client) -> None:
        await two_turns(client)
        if next(losses, False):
            raise RuntimeError("lost")

    async with agents_on(tmp_path, is_lost_once, counted) as run:
        run.player.num_fault_retries = 0
        start = run.programs.start

        async def started(*given: Any) -> Any:
            program = await start(*given)
            found = program.exit

            def exit() -> Exit | None:
                ended = found()
                is_lost = ended is not None and ended.code != 0
                return dataclasses.replace(ended, is_lost=True) if is_lost else ended  # type: ignore[type-var]

            monkeypatch.setattr(program, "exit", exit)
            return program

        monkeypatch.setattr(run.programs, "start", started)
        (trajectory,) = await run.play()
        assert not run.group.scores and run.player.recorder.tally.counts["agent_faults"] == 0
        assert len(run.engine.bodies) == 2 and len(trajectory.turns()) == 2 and not trajectory.branches
