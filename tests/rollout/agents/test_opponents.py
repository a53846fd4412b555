"""Opponents of an agent: frozen models whose replies are context, kept until the trajectory ends."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import Client, Refused, agents_on
from fakes.chat_codec import END
from fakes.records import make_queue, make_task, reopen

from asyncrl.errors import ServerError
from asyncrl.journal.kept_answers import KeptReplies, Said
from asyncrl.records import DropReason, Finish
from asyncrl.rollout.agents.process import Given
from asyncrl.serving.server import ServerState

ASKED = {"role": "user", "content": "Guess."}


def counted(text: str) -> str:
    return f"turn {text.count('<|im_start|>assistant')}{END}"


def countered(text: str) -> str:
    return f"no{END}"


async def talks(client: Client) -> Given:
    """The policy speaks, the rival answers it, the policy answers that."""
    first = await client.say([ASKED], model="player")
    said = await client.say([{"role": "user", "content": first["content"]}], model="rival")
    told = [ASKED, {"role": "assistant", "content": first["content"]}]
    await client.say([*told, {"role": "user", "content": said["content"]}], model="player")
    return {"player": 1.0}


async def test_what_an_opponent_says_is_context_and_never_trained(tmp_path: Path) -> None:
    async with agents_on(tmp_path, talks, counted, roles=["player"], rival=countered) as run:
        (trajectory,) = await run.play()
        (line,) = trajectory.lines()
        assert [run.codec.exact_text(turn) for turn in line.turns()] == [f"turn 1{END}", f"turn 2{END}"]
        assert "user\nno" in run.text(line).replace("\\n", "\n")
        assert len(run.engine.bodies) == 2 and len(run.rival.bodies) == 1
        (own, other) = (engine.bodies[0]["sampling_params"][0] for engine in (run.engine, run.rival))
        assert {**own, "max_new_tokens": 0} == {**other, "max_new_tokens": 0}
        assert run.group.scores[trajectory.trajectory_id].scores == {"player": 1.0}
        run.queue.journal.barrier_blocking()
        assert run.queue.journal.read("SELECT count(*) FROM calls")[0][0] == 2
        kept = run.player.recorder.opponents.kept
        assert kept._database.execute("SELECT count(*) FROM replies").fetchone() == (0,)


async def test_an_opponent_answers_greedily_where_the_policy_does(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, samples=1)
    async with agents_on(tmp_path, talks, counted, roles=["player"], rival=countered, queue=queue) as run:
        run.group.trajectories[0].is_greedy = True
        await run.play()
        assert run.rival.bodies[0]["sampling_params"][0]["temperature"] == 0.0


async def test_a_restart_and_a_crash_of_the_agent_find_the_replies_that_were_given(tmp_path: Path) -> None:
    num_starts = 0

    async def crashes_then_hangs(client: Client) -> Given:
        nonlocal num_starts
        num_starts += 1
        await talks(client)
        if num_starts == 1:
            raise RuntimeError("crashed")
        await asyncio.Event().wait()
        return {}

    numbers = iter(range(9))

    def differs(text: str) -> str:
        return f"no {next(numbers)}{END}"

    async with agents_on(tmp_path, crashes_then_hangs, counted, roles=["player"], rival=differs) as run:
        work = asyncio.create_task(run.play())
        while num_starts < 2 or sum(each.num_replies() for each in run.player._sessions) < 3:
            await asyncio.sleep(0)
        run.player.state.stop()
        await work
        assert len(run.rival.bodies) == 1
        queue = run.queue
    again = reopen(queue, tmp_path, samples=1)
    again.live[0].task = make_task()
    async with agents_on(tmp_path, talks, counted, roles=["player"], rival=differs, queue=again) as run:
        (trajectory,) = await run.play()
        assert run.engine.bodies == [] and run.rival.bodies == []
        (line,) = trajectory.lines()
        assert "no 0" in run.text(line) and len(line.turns()) == 2


async def test_replies_in_a_group_that_is_dropped_are_forgotten(tmp_path: Path) -> None:
    async def drops(client: Client) -> Given:
        await client.say([ASKED], model="rival")
        run.queue.drop(run.group, DropReason.STALE)
        await asyncio.Event().wait()
        return {}

    async with agents_on(tmp_path, drops, counted, roles=["player"], rival=countered) as run:
        assert await run.play() == []
        kept = run.player.recorder.opponents.kept
        assert kept._database.execute("SELECT count(*) FROM replies").fetchone() == (0,)


async def test_samples_of_one_call_and_equal_calls_are_apart(tmp_path: Path) -> None:
    said: list[Any] = []

    async def asks(client: Client) -> Given:
        for _ in range(2):
            found = await client.chat([ASKED], model="rival", n=2)
            said.append([choice["message"]["content"] for choice in found["choices"]])
        said.append(await client.chat([ASKED], model="rival", stream=True))
        said.append(await client.ask("GET", "/models"))
        await client.say([ASKED], model="player")
        return {"player": 1.0}

    numbers = iter(range(9))

    def differs(text: str) -> str:
        return f"no {next(numbers)}{END}"

    async with agents_on(tmp_path, asks, counted, roles=["player"], rival=differs) as run:
        await run.play()
    first, second, events, models = said
    assert len({*first, *second}) == 4
    streamed = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
    assert streamed == "no 4"
    assert [model["id"] for model in models["data"]] == ["player", "rival"]


async def test_a_call_beyond_the_limits_is_refused_and_one_of_no_role_names_all(tmp_path: Path) -> None:
    refused: list[str] = []

    async def asks(client: Client) -> Given:
        for model, text in (("stranger", "Guess."), ("rival", "x" * 5000), ("rival", "a"), ("rival", "b")):
            try:
                await client.say([{"role": "user", "content": text}], model=model)
            except Refused as error:
                refused.append(error.error["message"])
        return {}

    async with agents_on(tmp_path, asks, counted, roles=["player"], rival=countered, max_calls=1) as run:
        await run.play()
    named, long, most = refused
    assert named.endswith("player or rival (agent.roles, agent.opponents).")
    assert "no room is left for a reply" in long and "agent.max_calls is 1" in most


async def test_an_agent_that_asks_opponents_alone_made_a_call(tmp_path: Path) -> None:
    async def asks(client: Client) -> Given:
        await client.say([ASKED], model="rival")
        return {"rival": 1.0}

    async with agents_on(tmp_path, asks, counted, roles=["player"], rival=countered) as run:
        (trajectory,) = await run.play()
        assert run.player.recorder.tally.counts["agents_replied"] == 1
        assert run.group.scores[trajectory.trajectory_id].outcome == "no_answer"


async def test_a_server_that_is_lost_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    async with agents_on(tmp_path, talks, counted, roles=["player"], rival=countered) as run:
        (server,) = run.player.recorder.opponents.generators["rival"].fleet.members.servers.values()
        server.state, server.reason = ServerState.DEAD, "it died five times"
        with pytest.raises(ServerError, match=r"agent\.opponents\.rival is lost: it died five times"):
            await run.play()


def test_a_disk_that_refuses_is_said_once_and_costs_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptReplies(tmp_path / "replies")
    kept.keep("a", "1", Said([1], [-0.5], Finish.STOP))
    kept._database.execute("PRAGMA query_only = ON")
    with caplog.at_level(logging.WARNING):
        kept.keep("a", "2", Said([2], [-0.5], Finish.STOP))
        kept.forget("a")
    assert caplog.text.count("cannot be kept") == 1
    assert kept.find("a", "2") is None and kept.find("a", "1") == Said([1], [-0.5], Finish.STOP)
    kept.close()
