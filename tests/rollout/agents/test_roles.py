"""Roles of an agent: whose conversation is whose, and each role's score and advantage."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import Client, Played, Refused, agents_on
from fakes.chat_codec import END
from fakes.completions import completion_on
from fakes.records import make_task, reopen

from asyncrl.algorithms.advantages import find_advantage
from asyncrl.journal.explain import explain_group, explain_trajectory
from asyncrl.journal.packing import sequences_of
from asyncrl.journal.reader import JournalReader
from asyncrl.recipe import Algorithm
from asyncrl.replay.group import GroupState
from asyncrl.rollout.agents.process import Given, read_verdict
from asyncrl.rollout.complete import GroupCompletion
from asyncrl.rollout.filter import group_signal

ROLES = ("proposer", "checker")
ASKED = {"role": "user", "content": "Guess."}
NEXT = {"role": "user", "content": "Is it right?"}
BOTH = {"proposer": 1.0, "checker": 0.0}


def counted(text: str) -> str:
    return f"turn {text.count('<|im_start|>assistant')}{END}"


async def both_speak(client: Client) -> Given:
    await client.say([ASKED], model="proposer")
    await client.say([NEXT], model="checker")
    return BOTH


async def test_each_role_has_a_conversation_and_a_score_of_its_own(tmp_path: Path) -> None:
    async with agents_on(tmp_path, both_speak, counted, roles=ROLES) as run:
        (trajectory,) = await run.play()
        assert [line.role for line in trajectory.lines()] == ["proposer", "checker"]
        score = run.group.scores[trajectory.trajectory_id]
        assert (score.outcome, score.correctness, score.scores) == ("wrong", 0.5, BOTH)
        assert score.branch_rewards() == {"00000000-00": 1.0, "00000000-00.1": 0.0}
        run.queue.journal.barrier_blocking()
        reader = JournalReader(run.queue.journal.path)
        group = reader.group(0)
        assert group is not None
        told = explain_trajectory(reader, group, group["trajectories"][1])
        assert (
            "The verdict on this conversation alone was wrong, reward 0 (role checker, agent.roles)." in told
        )
        assert any("checker, branch of 00000000-00, wrong" in line for line in explain_group(reader, group))
        rows = [(row["role"], row["branch_verdict"]) for row in group["trajectories"]]
        assert [(role, own and (own["reward"], own["text"])) for role, own in rows] == [
            ("proposer", (1.0, "turn 1")),
            ("checker", (0.0, "turn 1")),
        ]
        queue = reopen(run.queue, tmp_path, samples=1)
        (restored,) = queue.live[0].trajectories
        assert [line.role for line in restored.lines()] == ["proposer", "checker"]
        again = queue.live[0].scores[trajectory.trajectory_id]
        assert again.branch_rewards() == score.branch_rewards() and again.scores == BOTH
        queue.journal.close()


async def test_a_role_does_not_continue_the_conversation_of_another(tmp_path: Path) -> None:
    async def swaps(client: Client) -> Given:
        first = await client.say([ASKED], model="proposer")
        told = [ASKED, {"role": "assistant", "content": first["content"]}, NEXT]
        await client.say(told, model="checker")
        await client.say(told, model="proposer")
        return BOTH

    async with agents_on(tmp_path, swaps, counted, roles=ROLES) as run:
        (trajectory,) = await run.play()
        assert [(line.role, len(line.turns())) for line in trajectory.lines()] == [
            ("proposer", 2),
            ("checker", 1),
        ]


@pytest.mark.parametrize("named", ["model", "", "Checker"])
async def test_a_call_that_names_no_role_is_refused_with_the_roles(tmp_path: Path, named: str) -> None:
    told: list[str] = []

    async def misnames(client: Client) -> Given:
        with pytest.raises(Refused) as refused:
            await client.say([ASKED], model=named)
        assert refused.value.status == 400
        told.append(refused.value.error["message"])
        found = await client.ask("GET", "/models")
        assert [each["id"] for each in found["data"]] == list(ROLES)
        return await both_speak(client)

    async with agents_on(tmp_path, misnames, counted, roles=ROLES) as run:
        (trajectory,) = await run.play()
        words = f"model is {named!r}, expected the role that speaks: proposer or checker (agent.roles)."
        assert told == [words]
        assert run.group.scores[trajectory.trajectory_id].outcome == "wrong"


@pytest.mark.parametrize("given", [None, {"proposer": 1.0}, 0.5])
async def test_a_role_that_spoke_without_a_score_is_a_fault(tmp_path: Path, given: Given | None) -> None:
    async def forgets(client: Client) -> Given | None:
        await both_speak(client)
        return given

    async with agents_on(tmp_path, forgets, counted, roles=ROLES) as run:
        (trajectory,) = await run.play()
        score = run.group.scores[trajectory.trajectory_id]
        assert (score.outcome, score.reward, score.branches) == ("fault", None, {})
        assert "its verdict has no score for checker, which spoke (agent.roles)" in score.detail
        # It is started once more, and its calls are answered from the record.
        assert run.programs.num_started == 2 and len(run.engine.bodies) == 2


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            1.0,
            'it is 1.0, expected a score for each role (agent.roles), as {"proposer": 1.0, "checker": 1.0}',
        ),
        ({"judge": 1}, "it has a score for 'judge', expected one of agent.roles: proposer, checker"),
        ({"checker": 2}, r"the score of checker is 2, expected a number in [0, 1]"),
        ({"checker": True}, r"the score of checker is True, expected a number in [0, 1]"),
    ],
)
def test_a_verdict_that_is_not_a_score_for_each_role_says_why(found: Any, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        read_verdict(found, ROLES)
    assert words in str(raised.value)
    assert read_verdict(BOTH, ["checker"], ["proposer"]) == {"checker": 0.0}


async def test_a_role_that_does_not_speak_needs_no_score_and_gets_none(tmp_path: Path) -> None:
    async def alone(client: Client) -> Given:
        await client.say([ASKED], model="checker")
        return {**BOTH, "checker": 1.0}

    async def silent(client: Client) -> Given:
        return BOTH

    async with agents_on(tmp_path, alone, counted, roles=ROLES) as run:
        (trajectory,) = await run.play()
        score = run.group.scores[trajectory.trajectory_id]
        assert (score.outcome, score.scores) == ("correct", {"checker": 1.0})
    (tmp_path / "silent").mkdir()
    async with agents_on(tmp_path / "silent", silent, counted, roles=ROLES) as run:
        (trajectory,) = await run.play()
        score = run.group.scores[trajectory.trajectory_id]
        assert (score.outcome, score.reward, score.detail) == ("no_answer", 0.0, "no role spoke")


async def test_late_agents_and_refused_calls_are_wrong_for_each_role_without_a_score(tmp_path: Path) -> None:
    async def late(client: Client) -> Given:
        await both_speak(client)
        await asyncio.Event().wait()
        return BOTH

    async def over(client: Client) -> Given:
        await client.say([ASKED], model="proposer")
        with pytest.raises(Refused, match="agent.max_calls is 1"):
            await client.say([NEXT], model="checker")
        return {}

    async with agents_on(tmp_path, late, counted, roles=ROLES, timeout_seconds=0.05) as run:
        (trajectory,) = await run.play()
        score = run.group.scores[trajectory.trajectory_id]
        assert (score.outcome, score.scores) == ("wrong", {"proposer": 0.0, "checker": 0.0})
        assert "agent.timeout_seconds" in score.detail
    (tmp_path / "over").mkdir()
    async with agents_on(tmp_path / "over", over, counted, roles=ROLES, max_calls=1) as run:
        (trajectory,) = await run.play()
        score = run.group.scores[trajectory.trajectory_id]
        assert (score.outcome, score.scores, score.detail) == (
            "wrong",
            {"proposer": 0.0},
            "agent.max_calls is 1: no more calls.",
        )


async def test_a_restart_in_the_middle_of_an_episode_goes_on_with_the_other_role(tmp_path: Path) -> None:
    async def hangs(client: Client) -> Given:
        await client.say([ASKED], model="proposer")
        await asyncio.Event().wait()
        return BOTH

    async with agents_on(tmp_path, hangs, counted, roles=ROLES) as run:
        work = asyncio.create_task(run.play())
        (trajectory,) = run.group.trajectories
        while trajectory.turn_finish is None:
            await asyncio.sleep(0)
        run.player.state.stop()
        await work
        queue = run.queue
    again = reopen(queue, tmp_path, samples=1)
    again.live[0].task = make_task()

    # The same messages as the proposer's: the record answers the role that asked.
    async def same_words(client: Client) -> Given:
        await client.say([ASKED], model="checker")
        await client.say([ASKED], model="proposer")
        return BOTH

    async with agents_on(tmp_path, same_words, counted, roles=ROLES, queue=again) as run:
        (trajectory,) = await run.play()
        assert [(line.trajectory_id, line.role) for line in trajectory.lines()] == [
            ("00000000-00", "proposer"),
            ("00000000-00.1", "checker"),
        ]
        assert len(run.engine.bodies) == 1 and run.group.scores[trajectory.trajectory_id].scores == BOTH


def completion_of(run: Played, algorithm: Algorithm) -> GroupCompletion:
    signal = group_signal(find_advantage(algorithm), algorithm)
    unused: Any = None
    limits = run.player.shaping.limits
    return completion_on(
        *(run.queue, run.player, unused, run.codec, algorithm, signal),
        drops=True,
        most_dropped=9,
        limits=limits,
    )


GIVEN = [
    {"proposer": 1.0, "checker": 1.0},
    {"proposer": 0.0, "checker": 1.0},
    {"proposer": 1.0, "checker": 0.0},
    {"proposer": 0.0, "checker": 0.0},
]


async def test_each_role_gets_its_advantage_within_its_own_group(tmp_path: Path) -> None:
    numbers = itertools.count()

    async def plays(client: Client) -> Given:
        number = next(numbers)
        await both_speak(client)
        return GIVEN[number]

    async with agents_on(tmp_path, plays, counted, roles=ROLES, samples=4, max_agents=1) as run:
        await completion_of(run, Algorithm(advantage="dr_grpo")).run(run.group)
        assert run.group.state is GroupState.READY
        found = {s.sequence_id: (s.advantage, s.reward) for s in sequences_of(run.group)}
        # Each role's mean is a half; the means over roles are 1, 1/2, 1/2 and 0.
        assert found == {
            name: (score - 0.5, score)
            for i, given in enumerate(GIVEN)
            for name, score in zip(
                (f"00000000-0{i}", f"00000000-0{i}.1"), (given["proposer"], given["checker"]), strict=True
            )
        }
        again = reopen(run.queue, tmp_path, samples=4)
        assert sequences_of(again.live[0]) == sequences_of(run.group)
        again.journal.close()


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ([{"proposer": 1.0, "checker": 1.0}, {"proposer": 1.0, "checker": 0.0}], GroupState.READY),
        # Means over the roles are apart, but neither role has two rewards that are.
        ([{"proposer": 1.0, "checker": 0.0}, {"proposer": 1.0}], GroupState.DROPPED),
        ([{"proposer": 1.0, "checker": 0.5}, {"proposer": 1.0, "checker": 0.5}], GroupState.DROPPED),
    ],
)
async def test_a_group_has_a_signal_where_a_role_has_one(
    tmp_path: Path, given: list[dict[str, float]], state: GroupState
) -> None:
    left = iter(given)

    async def plays(client: Client) -> Given:
        own = next(left)
        for role in own:
            await client.say([ASKED], model=role)
        return own

    async with agents_on(tmp_path, plays, counted, roles=ROLES, samples=2, max_agents=1) as run:
        await completion_of(run, Algorithm(advantage="grpo")).run(run.group)
        assert run.group.state is state
