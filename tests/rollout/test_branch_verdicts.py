"""Branches of an agent that are judged each: rewards, advantages, books, and a restart between."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.completions import completion_on
from fakes.records import make_score, make_task
from rollout.test_complete import journal_queue

from asyncrl.algorithms.advantages import find_advantage
from asyncrl.errors import InputError
from asyncrl.journal.conservation import read_conservation
from asyncrl.journal.explain import explain_group, explain_trajectory
from asyncrl.journal.packing import sequences_of
from asyncrl.journal.queue_state import load_groups
from asyncrl.journal.reader import JournalReader
from asyncrl.recipe import Algorithm
from asyncrl.records import DropReason, Finish, Observed, RecordedCall, Score, Segment, Task, Trajectory
from asyncrl.replay.branches import open_line, record_call
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.filter import group_signal

OWN = """
def broken(group, algorithm):
    return [0.0] * len(group.rewards) if group.lengths[0] in (1, 3) else None
"""


class ByText:
    """Rewards by the message that is judged; None is a fault."""

    def __init__(self, rewards: Mapping[str, float | None]) -> None:
        self.rewards = rewards
        self.judged: list[str] = []

    async def grade(
        self, task: Task, response: str, conversation: object, *, num_turns: int | None = None
    ) -> Score:
        self.judged.append(response)
        return make_score(self.rewards[response])


def turn(queue: ReplayQueue, group: Group, line: Trajectory, whole: Trajectory, tokens: list[int]) -> None:
    """A call that this turn answers."""
    number = int(line.trajectory_id.partition(".")[2] or 0)
    ordinal, place = len(whole.calls), line.num_observations() + bool(line.segments)
    call = RecordedCall(ordinal, 0, f"digest {ordinal}", number, place)
    record_call(queue, group, whole, call, Observed([50], "{}") if place else None)
    queue.append(group, line, [Segment(0, tokens, [-0.5] * len(tokens))], None)
    line.turn_finish = Finish.STOP


def in_branches(queue: ReplayQueue) -> Group:
    """Two trajectories: "1 1" with a branch that ends in "2 2 2" after a turn before; and "3" alone."""
    queue.announce(0)
    group = queue.admit(make_task())
    first, second = group.trajectories
    turn(queue, group, open_line(queue, group, first, [4, 5]), first, [1, 1])
    branch = open_line(queue, group, first, [6])
    turn(queue, group, branch, first, [9])
    turn(queue, group, branch, first, [2, 2, 2])
    turn(queue, group, open_line(queue, group, second, [4, 5]), second, [3])
    for trajectory in group.trajectories:
        queue.end(group, trajectory, Finish.STOP, None, "")
    return group


def complete(
    queue: ReplayQueue, group: Group, grader: ByText, *, is_by_branch: bool = True, **algorithm: object
) -> None:
    section = Algorithm(**{"advantage": "rloo", **algorithm})  # type: ignore[arg-type]
    generator = SimpleNamespace(limit_sampled_tokens=lambda line: 4, run=lambda group: _nothing())
    signal = group_signal(find_advantage(section), section)
    codec = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens)))
    completion = completion_on(
        *(queue, generator, grader, codec, section, signal),
        drops=True,
        most_dropped=10,
        judges_branches=is_by_branch,
    )
    asyncio.run(completion.run(group))


async def _nothing():
    for nothing in ():
        yield nothing


def test_each_branch_is_judged_by_its_last_message_and_trained_with_its_own_advantage(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group, grader = in_branches(queue), ByText({"1 1": 1.0, "2 2 2": 0.0, "3": 0.25})
    complete(queue, group, grader)
    assert sorted(grader.judged) == ["1 1", "2 2 2", "3"]
    score = group.scores["00000000-00"]
    assert (score.outcome, score.correctness, score.reward) == ("wrong", 0.5, 0.5)
    # rloo: 1 and 0 against the other trajectory's 0.25; that one against the mean of the branches, 0.5.
    found = sequences_of(group)
    assert [(s.sequence_id, s.advantage, s.reward) for s in found] == [
        ("00000000-00", 0.75, 1.0),
        ("00000000-00.1", -0.25, 0.0),
        ("00000000-01", -0.25, 0.25),
    ]
    assert all(not sequence.turn_advantages for sequence in found)


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo", "reinforce_pp", "opo", "gae"])
def test_equal_verdicts_train_what_one_verdict_for_all_trains(tmp_path: Path, advantage: str) -> None:
    found = []
    for is_by_branch in (True, False):
        (folder := tmp_path / str(is_by_branch)).mkdir()
        queue = journal_queue(folder)
        group = in_branches(queue)
        grader = ByText({"1 1": 0.1, "2 2 2": 0.1, "3": 0.7})
        complete(queue, group, grader, is_by_branch=is_by_branch, advantage=advantage)
        found.append(sequences_of(group))
        queue.journal.close()
    assert found[0] == found[1] and len(found[0]) == 3


def test_a_restart_finds_the_verdicts_of_branches_before_and_after_the_group_is_ready(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    queue = journal_queue(tmp_path)
    group, grader = in_branches(queue), ByText({"1 1": 1.0, "2 2 2": 0.0, "3": 0.25})
    with pytest.raises(InputError):
        # The verdicts are there, the advantages are not.
        complete(queue, group, ByText(grader.rewards), advantage=f"{tmp_path}/own.py:broken")
    queue.journal.close()
    again = journal_queue(tmp_path)
    again.restore(lambda task_id, prompt: make_task())
    again.announce(0)
    (resumed,) = again.live.values()
    assert resumed.scores["00000000-00"].branch_rewards() == {"00000000-00": 1.0, "00000000-00.1": 0.0}
    complete(again, resumed, grader)
    wanted = sequences_of(resumed)
    assert not grader.judged and [s.advantage for s in wanted] == [0.75, -0.25, -0.25]
    again.journal.close()
    last = journal_queue(tmp_path)
    last.restore(lambda task_id, prompt: make_task())
    last.announce(0)
    taken = last.take(0)
    assert taken is not None and sequences_of(taken[0]) == wanted
    last.journal.barrier_blocking()
    assert list(load_groups(last.journal, 0)) == [wanted]
    assert read_conservation(last.journal.path) == last.conservation()
    assert last.conservation()["taken"] == last.conservation()["generated"] == 7


def test_a_branch_without_a_verdict_takes_its_trajectory_out_of_the_group(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group = in_branches(queue)
    complete(queue, group, ByText({"1 1": 1.0, "2 2 2": None, "3": 0.25}))
    assert group.scores["00000000-00"].outcome == "fault" and group.scores["00000000-00"].reward is None
    assert group.state is GroupState.DROPPED and group.reason is DropReason.FAULT
    assert queue.conservation()["dropped: fault"] == 7


@pytest.mark.parametrize(("other", "state"), [(0.5, GroupState.READY), (1.0, GroupState.DROPPED)])
def test_branches_that_differ_are_a_signal_where_trajectories_are_equal(
    tmp_path: Path, other: float, state: GroupState
) -> None:
    queue = journal_queue(tmp_path)
    group = in_branches(queue)
    first = 0.5 if other == 0.5 else 1.0
    complete(queue, group, ByText({"1 1": 1.0, "2 2 2": 2 * first - 1.0, "3": other}))
    assert group.state is state


def test_shaping_is_that_of_each_branch(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    group = in_branches(queue)
    rewards = {"1 1": 1.0, "2 2 2": 1.0, "3": 0.0}
    complete(queue, group, ByText(rewards), overlong={"buffer_tokens": 2, "penalty": 1.0})
    # The branch has all 4 tokens of its limit, the trajectory's own conversation 2.
    assert group.scores["00000000-00"].branch_rewards() == {"00000000-00": 1.0, "00000000-00.1": 0.0}


def test_a_person_reads_the_verdict_of_each_branch(tmp_path: Path) -> None:
    queue = journal_queue(tmp_path)
    complete(queue, in_branches(queue), ByText({"1 1": 1.0, "2 2 2": 0.0, "3": 0.25}))
    queue.journal.barrier_blocking()
    reader = JournalReader(queue.journal.path)
    group = reader.group(0)
    assert group is not None
    whole, branch, alone = group["trajectories"]
    assert (whole["reward"], branch["reward"], branch["advantage"]) == (0.5, 0.0, -0.25)
    assert whole["branch_verdict"] is not None and whole["branch_verdict"]["reward"] == 1.0
    assert branch["branch_verdict"] is not None and branch["branch_verdict"]["text"] == "2 2 2"
    assert alone["branch_verdict"] is None
    assert [run for _, run in whole["turn_advantages"]] == [0.75]
    assert [run for _, run in branch["turn_advantages"]] == [-0.25, -0.25]
    told = explain_trajectory(reader, group, branch)
    assert "The verdict on this conversation alone was wrong, reward 0 (agent.verdict)." in told
    assert any("branch of 00000000-00, wrong" in line for line in explain_group(reader, group))
