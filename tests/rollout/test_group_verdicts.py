"""A group-wise verifier is asked once, when all responses of a group are there, and its verdicts are recorded
together."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.completions import completion_on
from fakes.records import correctness_differs, make_score

from asyncrl.errors import InputError
from asyncrl.journal.writer import Journal
from asyncrl.recipe import Algorithm, Verifying
from asyncrl.records import DropReason, Finish, Segment, Task, Trajectory, VerifierSpec
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings
from asyncrl.rollout.complete import GroupCompletion
from asyncrl.rollout.grade import Grader
from asyncrl.tasks.verifier_cache import GoldExample, VerifierCache
from verifiers.own import Gold

RANKS = """
from verifiers.verdict import Outcome, Verdict, fault

class Longest:
    min_responses = 2
    def __init__(self, then=""):
        self.then = then
    def parse_reference(self, raw):
        return raw
    def verify_group(self, responses, reference, tasks):
        if self.then == "raise": raise KeyError("no")
        order = sorted(responses, key=len)
        found = [
            Verdict(Outcome.CORRECT, (1 + order.index(text)) / len(order), detail=" ".join(task.turns))
            for text, task in zip(responses, tasks)
        ]
        return [fault("the first"), *found[1:]] if self.then == "first" else found
"""
CODEC = SimpleNamespace(
    decode=lambda tokens: "".join(chr(97 + token) for token in tokens), exact_text=lambda tokens: "x"
)


def group_task(then: str = "") -> Task:
    return Task("train:1", "p", (7,), Gold("g"), VerifierSpec("./v.py:Longest", {"then": then}))


def queue_in(folder: Path, samples: int = 3) -> ReplayQueue:
    settings = QueueSettings(groups_per_batch=1, samples_per_group=samples, max_staleness=0, num_steps=4)
    queue = ReplayQueue(Journal(folder / "journal.sqlite"), settings, has_signal=correctness_differs)
    queue.announce(0)
    return queue


def end(queue: ReplayQueue, group: Group, trajectory: Trajectory, length: int) -> None:
    queue.append(group, trajectory, [Segment(0, list(range(length)), [-0.5] * length)], finish=Finish.STOP)


class OneByOne:
    """Rollouts that end in order, with 1, 2, ... tokens; the last of them when it may."""

    def __init__(self, queue: ReplayQueue) -> None:
        self.queue, self.may_end = queue, asyncio.Event()
        self.num_ended = 0

    def limit_sampled_tokens(self, trajectory: Trajectory) -> int:
        return 100

    async def run(self, group: Group) -> AsyncIterator[Trajectory]:
        for length, trajectory in enumerate(group.trajectories, start=1):
            if trajectory is group.trajectories[-1]:
                await self.may_end.wait()
            if trajectory.finish is None:
                end(self.queue, group, trajectory, length)
            self.num_ended += 1
            yield trajectory


class Nothing:
    """Rollouts that have no trajectory left to generate, or are stopped."""

    async def run(self, group: Group) -> AsyncIterator[Trajectory]:
        for trajectory in ():
            yield trajectory


def completion_of(
    queue: ReplayQueue, rollouts: OneByOne, grader: Grader, cache: VerifierCache
) -> GroupCompletion:
    algorithm = Algorithm(advantage="dr_grpo")
    return completion_on(
        *(queue, rollouts, grader, CODEC, algorithm, correctness_differs),
        is_group_wise=lambda task: cache.is_group_wise(task.verifier),
    )


async def begun(completion: GroupCompletion, rollouts: OneByOne, group: Group) -> asyncio.Task[None]:
    """The group's completion, at the point where all responses but the last have ended."""
    work = asyncio.create_task(completion.run(group))
    while rollouts.num_ended < 2:
        await asyncio.sleep(0)
    return work


@pytest.fixture
def cache(tmp_path: Path) -> VerifierCache:
    (tmp_path / "v.py").write_text(RANKS)
    return VerifierCache(tmp_path)


def grader_of(cache: VerifierCache, retries: int = 0) -> Grader:
    return Grader(Verifying(timeout_seconds=20), cache, max_fault_retries=retries)


async def test_no_verdict_is_asked_for_before_the_last_response_is_there(
    tmp_path: Path, cache: VerifierCache
) -> None:
    queue = queue_in(tmp_path)
    group, rollouts = queue.admit(group_task()), OneByOne(queue)
    async with grader_of(cache) as grader:
        work = await begun(completion_of(queue, rollouts, grader, cache), rollouts, group)
        assert not group.scores and not grader.outcomes
        rollouts.may_end.set()
        await work
        assert grader.outcomes == {("./v.py:Longest", "correct"): 3}
    scores = [group.scores[each.trajectory_id] for each in group.trajectories]
    assert [score.correctness for score in scores] == [1 / 3, 2 / 3, 1.0]
    # Each with its own conversation.
    assert [score.detail for score in scores] == ["a", "ab", "abc"]
    assert group.state is GroupState.READY
    assert list(group.advantages.values()) == pytest.approx([-1 / 3, 0, 1 / 3])


@pytest.mark.parametrize(("then", "num_faults"), [("raise", 3), ("first", 1)])
async def test_faults_leave_before_the_baseline(
    tmp_path: Path, cache: VerifierCache, then: str, num_faults: int
) -> None:
    queue = queue_in(tmp_path)
    group, rollouts = queue.admit(group_task(then)), OneByOne(queue)
    rollouts.may_end.set()
    async with grader_of(cache, retries=1) as grader:
        await completion_of(queue, rollouts, grader, cache).run(group)
        # What faults as a whole is tried again; a response's own fault is not.
        assert grader.outcomes["./v.py:Longest", "fault"] == (6 if then == "raise" else 1)
    assert sum(score.reward is None for score in group.scores.values()) == num_faults
    if then == "raise":
        assert (group.state, group.reason) == (GroupState.DROPPED, DropReason.FAULT)
    else:
        assert group.state is GroupState.READY
        assert list(group.advantages.values()) == pytest.approx([-1 / 6, 1 / 6])


async def test_a_response_that_has_its_verdict_is_not_judged_again(
    tmp_path: Path, cache: VerifierCache
) -> None:
    """Its environment or agent gave it; the others are the group."""
    queue = queue_in(tmp_path)
    group, rollouts = queue.admit(group_task()), OneByOne(queue)
    queue.end(group, group.trajectories[0], Finish.STOP, make_score(0.25), "text")
    rollouts.may_end.set()
    async with grader_of(cache) as grader:
        await completion_of(queue, rollouts, grader, cache).run(group)
    found = [group.scores[each.trajectory_id].correctness for each in group.trajectories]
    assert found == [0.25, 0.5, 1.0]


async def test_a_group_that_was_dropped_meanwhile_gets_no_verdicts(
    tmp_path: Path, cache: VerifierCache
) -> None:
    queue = queue_in(tmp_path)
    group, rollouts = queue.admit(group_task()), OneByOne(queue)
    async with grader_of(cache) as grader:
        work = await begun(completion_of(queue, rollouts, grader, cache), rollouts, group)
        end(queue, group, group.trajectories[2], 3)
        queue.drop(group, DropReason.STALE)
        rollouts.may_end.set()
        await work
    assert not group.scores and group.reason is DropReason.STALE


async def test_verdicts_of_a_group_are_one_transaction(
    tmp_path: Path, cache: VerifierCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_in(tmp_path)
    group, rollouts = queue.admit(group_task()), OneByOne(queue)
    rollouts.may_end.set()
    written: list[int] = []
    write = queue.journal.write
    monkeypatch.setattr(
        queue.journal,
        "write",
        lambda *rows: (written.append(sum("SET outcome" in row[0] for row in rows)), write(*rows)),
    )
    async with grader_of(cache) as grader:
        await completion_of(queue, rollouts, grader, cache).run(group)
    assert [number for number in written if number] == [3]


@pytest.mark.parametrize(("num_responses", "said"), [(1, "Raise rollout.samples_per_group"), (2, None)])
def test_a_verifier_that_compares_is_refused_where_responses_come_alone(
    cache: VerifierCache, num_responses: int, said: str | None
) -> None:
    spec = VerifierSpec("./v.py:Longest")
    with pytest.raises(InputError, match="cannot judge one alone. data.heldout is judged"):
        cache.check_alone(spec, "data.heldout")
    cache.remember(GoldExample("row 1", spec, "7", "7"), "longest")
    with pytest.raises(InputError, match="rollout.pilot_samples needs verdicts on the first ones alone"):
        cache.check_groups(8, has_pilot=True)
    if said is None:
        cache.check_groups(num_responses)
    else:
        with pytest.raises(InputError, match=said):
            cache.check_groups(num_responses)


def test_a_verifier_that_compares_trajectories_is_refused_where_branches_are_judged(
    cache: VerifierCache,
) -> None:
    spec = VerifierSpec("exact")
    cache.remember(GoldExample("row 1", spec, "7", "7"), "exact")
    cache.check_branches()
    spec = VerifierSpec("./v.py:Longest")
    cache.remember(GoldExample("row 2", spec, "7", "7"), "longest")
    with pytest.raises(InputError, match='"./v.py:Longest" judges .* but agent.verdict is branch'):
        cache.check_branches()


async def test_a_group_that_ended_before_a_crash_is_judged_when_the_run_resumes(
    tmp_path: Path, cache: VerifierCache
) -> None:
    queue = queue_in(tmp_path)
    group = queue.admit(group_task())
    for length, trajectory in enumerate(group.trajectories, start=1):
        end(queue, group, trajectory, length)
    rollouts = OneByOne(queue)
    rollouts.may_end.set()
    async with grader_of(cache) as grader:
        completion = completion_of(queue, rollouts, grader, cache)
        await dataclasses.replace(completion, rollouts=Nothing()).run(group)
        assert grader.outcomes == {("./v.py:Longest", "correct"): 3}
    assert group.state is GroupState.READY


async def test_a_group_of_a_run_that_is_stopping_waits_for_its_last_response(
    tmp_path: Path, cache: VerifierCache
) -> None:
    queue = queue_in(tmp_path)
    group = queue.admit(group_task())
    end(queue, group, group.trajectories[0], 1)
    async with grader_of(cache) as grader:
        completion = completion_of(queue, OneByOne(queue), grader, cache)
        await dataclasses.replace(completion, rollouts=Nothing()).run(group)
    assert (group.state, group.scores, grader.outcomes) == (GroupState.OPEN, {}, {})
