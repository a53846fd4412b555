"""From a generated group to a ready one: shaped rewards, the greedy baseline, faults - on a real queue."""

import asyncio
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.completions import completion_on
from fakes.records import batch_of, correctness_differs, make_score, make_task

from asyncrl.errors import InputError
from asyncrl.journal.packing import unpack_logprobs
from asyncrl.journal.queue_state import load_batch
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.writer import Journal
from asyncrl.recipe import Algorithm
from asyncrl.records import CREDITS, Finish, Observed, Score, Segment, Task
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings

LIMIT = 10


class Grades:
    """Verdicts in the order in which they are asked for."""

    def __init__(self, *rewards: float | None) -> None:
        self._scores = [make_score(reward) for reward in rewards]

    async def grade(
        self, task: Task, response: str, conversation: object, *, num_turns: int | None = None
    ) -> Score:
        return self._scores.pop(0)


def complete(queue: ReplayQueue, algorithm: Algorithm, group: Group, *rewards: float | None) -> None:
    """Grades a generated group and readies or drops it."""
    generator = SimpleNamespace(limit_sampled_tokens=lambda trajectory: LIMIT, run=lambda group: _nothing())
    codec = SimpleNamespace(decode=lambda tokens: "text")
    completion = completion_on(queue, generator, Grades(*rewards), codec, algorithm, correctness_differs)
    asyncio.run(completion.run(group))


async def _nothing():
    for nothing in ():
        yield nothing


def generated(queue: ReplayQueue, *lengths: int) -> Group:
    """A group whose trajectories have ended, with these numbers of tokens; LIMIT cuts them off."""
    queue.announce(0)
    group = queue.admit(make_task())
    for trajectory, length in zip(group.trajectories, lengths, strict=True):
        tokens, finish = list(range(length)), Finish.LENGTH if length == LIMIT else Finish.STOP
        queue.append(group, trajectory, [Segment(0, tokens, [-0.5] * length)], finish)
    return group


def journal_queue(folder: Path, **settings: object) -> ReplayQueue:
    chosen = {"groups_per_batch": 1, "samples_per_group": 2, "max_staleness": 0, "num_steps": 4, **settings}
    return ReplayQueue(
        Journal(folder / "journal.sqlite"),
        QueueSettings(**chosen),  # type: ignore[arg-type]
        has_signal=correctness_differs,
    )


def test_a_long_answer_loses_reward_and_keeps_its_correctness(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    algorithm = Algorithm(advantage="dr_grpo", overlong={"buffer_tokens": 4, "penalty": 0.5})
    group = generated(queue, 8, 3)
    complete(queue, algorithm, group, 1.0, 0.0)
    # 8 tokens are 2 of the 4 in the buffer before 10: half of the penalty of 0.5
    scores = [group.scores[t.trajectory_id] for t in group.trajectories]
    assert [(s.correctness, s.reward) for s in scores] == [(1.0, 0.75), (0.0, 0.0)]
    assert list(group.advantages.values()) == [0.375, -0.375]


def test_a_response_that_is_cut_off_gets_the_reward_that_the_recipe_gives_it(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group = generated(queue, LIMIT, 9)
    complete(queue, Algorithm(advantage="dr_grpo", cut_off_reward=0.0), group, 1.0, 1.0)
    scores = [group.scores[t.trajectory_id] for t in group.trajectories]
    assert [(s.correctness, s.reward) for s in scores] == [(1.0, 0.0), (1.0, 1.0)]


@pytest.mark.parametrize("keys", [{"cut_off_reward": 0.0}, {"overlong": {"buffer_tokens": 4}}])
def test_a_response_without_a_verdict_stays_without_a_reward(tmp_path: Path, keys: dict[str, float]) -> None:
    queue = journal_queue(tmp_path)
    group = generated(queue, LIMIT, LIMIT)
    complete(queue, Algorithm(**keys), group, None, 1.0)  # type: ignore[arg-type]
    assert group.scores[group.trajectories[0].trajectory_id].reward is None
    assert group.state is GroupState.DROPPED


def test_the_greedy_trajectory_gives_the_baseline_and_is_not_trained(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path, has_greedy=True)
    group = generated(queue, 3, 4, 5)
    assert [t.is_greedy for t in group.trajectories] == [False, False, True]
    complete(queue, Algorithm(advantage="remax"), group, 1.0, 0.0, 0.25)
    assert list(group.advantages.values()) == [0.75, -0.25]
    taken = queue.take(0)
    assert taken is not None
    batch = batch_of(taken, 0, 1.0)
    assert [len(s.response_tokens) for s in batch.sequences] == [3, 4]
    queue.journal.barrier_blocking()
    assert load_batch(queue.journal, 0, 1.0) == batch
    table = queue.conservation()
    assert (table["generated"], table["taken"], table["dropped: baseline"]) == (12, 7, 5)


@pytest.mark.parametrize("rewards", [(1.0, 0.0, None), (None, None, 0.0)])
def test_without_a_baseline_or_an_answer_the_group_is_dropped(
    tmp_path: Path, rewards: tuple[float | None, ...]
) -> None:
    queue = journal_queue(tmp_path, has_greedy=True)
    group = generated(queue, 3, 4, 5)
    complete(queue, Algorithm(advantage="remax"), group, *rewards)
    assert group.state is GroupState.DROPPED
    table = queue.conservation()
    assert table["generated"] == table["dropped: fault"] == 12


def test_a_critic_needs_no_second_answer(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group = generated(queue, 3, 4)
    complete(queue, Algorithm(advantage="gae"), group, None, 0.5)
    assert group.state is GroupState.READY
    # The reward itself: the trainer's critic makes advantages of it.
    assert list(group.advantages.items()) == [(group.trajectories[1].trajectory_id, 0.5)]


@pytest.mark.parametrize("name", ["remax", "reinforce_pp"])
def test_one_response_per_prompt_is_trained(tmp_path: Path, name: str) -> None:
    queue = journal_queue(tmp_path, samples_per_group=1, has_greedy=name == "remax")
    group = generated(queue, *([3, 5] if name == "remax" else [3]))
    complete(queue, Algorithm(advantage=name), group, *([1.0, 0.25] if name == "remax" else [1.0]))
    assert group.state is GroupState.READY
    assert list(group.advantages.values()) == [0.75 if name == "remax" else 1.0]


def test_shaping_and_score_add_up_as_they_are_written(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group = generated(queue, LIMIT, 3)
    algorithm = Algorithm(advantage="dr_grpo", overlong={"buffer_tokens": 1, "penalty": 0.1})
    # 0.8 - 0.1 is 0.7000000000000001 in floats.
    complete(queue, algorithm, group, 0.8, 0.7)
    assert [group.scores[t.trajectory_id].reward for t in group.trajectories] == [0.7, 0.7]
    assert list(group.advantages.values()) == [0.0, 0.0]


OWN = """
def broken(group, algorithm):
    return [None] * len(group.rewards) if len(group.rewards) == 4 else [0.0] * len(group.rewards)


def mended(group, algorithm):
    return [reward - min(group.rewards) for reward in group.rewards]
"""


def test_a_group_whose_advantage_breaks_stays_open_and_is_trained_once_that_is_mended(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    queue = journal_queue(tmp_path, samples_per_group=4)
    group = generated(queue, 3, 4, 5, 6)
    said = (
        r"own\.py:broken, .* gave \[None, None, None, None\], None at place 0; .* It was asked about "
        r"group 0, of the task train:1\. Fix it and run the same command again"
    )
    with pytest.raises(InputError, match=said):
        complete(queue, Algorithm(advantage=f"{tmp_path}/own.py:broken"), group, 1.0, 0.0, 1.0, 0.5)
    assert group.state is GroupState.OPEN and queue.take(0) is None
    queue.journal.close()

    again = journal_queue(tmp_path, samples_per_group=4)
    again.restore(lambda task_id, prompt: make_task())
    again.announce(0)
    (resumed,) = again.live.values()
    # Every verdict is there: nothing is generated or graded again.
    complete(again, Algorithm(advantage=f"{tmp_path}/own.py:mended"), resumed)
    assert list(resumed.advantages.values()) == [1.0, 0.0, 1.0, 0.5]
    assert again.take(0) == [resumed]
    assert again.conservation()["taken"] == again.conservation()["generated"] == 18


def test_an_advantage_that_breaks_on_correctness_alone_breaks_before_the_group_is_ready(
    tmp_path: Path,
) -> None:
    queue = journal_queue(tmp_path)

    def refuse(group: Group) -> bool:
        raise InputError("no signal can be found")

    queue.has_signal = refuse
    group = generated(queue, 3, 4)
    with pytest.raises(InputError, match="no signal can be found"):
        complete(queue, Algorithm(), group, 1.0, 0.0)
    assert group.state is GroupState.OPEN


def test_a_greedy_trajectory_is_greedy_after_a_restart(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path, has_greedy=True)
    queue.announce(0)
    queue.admit(make_task())
    queue.journal.close()
    again = journal_queue(tmp_path, has_greedy=True)
    again.restore(lambda task_id, prompt: make_task())
    assert [t.is_greedy for t in again.live[0].trajectories] == [False, False, True]


def in_turns(queue: ReplayQueue, rewards: list[list[float | None]]) -> Group:
    """A group whose turns have two tokens each; their environment gave them `rewards`, and ended them after
    another turn of one token."""
    queue.announce(0)
    group = queue.admit(make_task())
    for trajectory, earned in zip(group.trajectories, rewards, strict=True):
        for reward in earned:
            queue.append(group, trajectory, [Segment(0, [1, 2], [-0.5, -0.5])], None)
            trajectory.turn_finish = Finish.STOP
            queue.observe(group, trajectory, Observed([7, 7, 7], json.dumps({"reward": reward})))
        queue.append(group, trajectory, [Segment(0, [3], [-0.5])], Finish.STOP)
    return group


EARNED: list[list[float | None]] = [[0.5], [0.25, None]]


def test_rewards_of_turns_are_added_to_the_reward_unless_the_recipe_says_otherwise(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group = in_turns(queue, EARNED)
    complete(queue, Algorithm(advantage="dr_grpo"), group, 0.0, 1.0)
    first, second = (group.scores[t.trajectory_id] for t in group.trajectories)
    assert (first.reward, first.credits, second.reward, second.credits) == (0.0, [(1, 0.5)], 1.0, [(1, 0.25)])
    assert list(group.advantages.values()) == [-0.375, 0.375] and not group.turn_advantages


def test_each_turn_gets_the_advantage_of_what_followed(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group = in_turns(queue, EARNED)
    complete(queue, Algorithm(advantage="dr_grpo", credit="turns"), group, 0.0, 1.0)
    # To go: 0.5, 0 and 1.25, 1, 1.
    assert list(group.advantages.values()) == [-0.375, 0.375]
    assert list(group.turn_advantages.values()) == [
        [(2, -0.375), (1, -0.5)],
        [(2, 0.375), (2, 0.5), (1, 0.5)],
    ]


def test_a_critic_gets_the_outcome_and_the_credits_apart(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group = in_turns(queue, EARNED)
    complete(queue, Algorithm(advantage="gae"), group, 0.0, 1.0)
    assert list(group.advantages.values()) == [0.0, 1.0]
    taken = queue.take(0)
    assert taken is not None
    told = [unpack_logprobs(s.columns[CREDITS]) for s in batch_of(taken, 0, 1.0).sequences]
    earned = [[(i, credit) for i, credit in enumerate(each) if credit] for each in told]
    assert earned == [[(1, 0.5)], [(1, 0.25)]]


def test_without_credits_turns_have_the_advantage_of_their_trajectory(tmp_path: Path) -> None:
    found = []
    for credit in ("outcome", "turns"):
        (folder := tmp_path / credit).mkdir()
        queue = journal_queue(folder)
        group = in_turns(queue, [[None], [0.0, None]])
        complete(queue, Algorithm(credit=credit), group, 0.3, 1.0)
        assert not group.turn_advantages
        found.append(group.advantages)
        queue.journal.close()
    assert found[0] == found[1]


def test_credits_and_advantages_of_turns_come_back_from_the_journal_to_the_last_digit(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group = in_turns(queue, [[1 / 3], [0.1, -1e-7]])
    complete(queue, Algorithm(credit="turns"), group, 0.0, 1.0)
    names = [t.trajectory_id for t in group.trajectories]
    credits = [group.scores[name].credits for name in names]
    assert credits == [[(1, 1 / 3)], [(1, 0.1), (3, -1e-7)]] and len(group.turn_advantages) == 2
    queue.journal.close()
    again = journal_queue(tmp_path)
    again.restore(lambda task_id, prompt: group.task)
    again.announce(0)
    taken = again.take(0)
    assert taken is not None
    again.journal.barrier_blocking()
    assert load_batch(again.journal, 0, 1.0) == batch_of(taken, 0, 1.0) == batch_of([group], 0, 1.0)
    row = JournalReader(again.journal.path).group(group.group_id)
    assert row is not None
    assert [t["credits"] for t in row["trajectories"]] == credits
    assert [t["turn_advantages"] for t in row["trajectories"]] == [group.turn_advantages[n] for n in names]


def test_a_group_that_is_restored_before_its_advantages_keeps_its_credits(tmp_path: Path) -> None:
    """A crash between two verdicts: the spans of the first are in the journal as credits alone."""
    queue = journal_queue(tmp_path)
    group = in_turns(queue, EARNED)
    first = group.trajectories[0]
    queue.score(group, first, dataclasses.replace(make_score(0.0), credits=[(0, 2.0), (1, 0.5)]), "text")
    queue.journal.close()
    again = journal_queue(tmp_path)
    again.restore(lambda task_id, prompt: group.task)
    again.announce(0)
    resumed = again.live[group.group_id]
    complete(again, Algorithm(advantage="dr_grpo", credit="turns"), resumed, 1.0)
    assert resumed.scores[first.trajectory_id].credits == [(0, 2.0), (1, 0.5)]
    # Totals 2.5 and 1.25; only the second has more than its outcome to go after its first turn.
    assert resumed.turn_advantages[first.trajectory_id] == [(2, 0.625), (1, -0.5)]
