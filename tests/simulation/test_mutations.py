"""The simulation can fail: each rule that is taken out of the code shows within a few hundred schedules."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
from simulation.plan import draw_copies
from simulation.schedule import run_schedule

from asyncrl.controller.context import TrainerSession
from asyncrl.controller.trainer_wire import TrainerWire
from asyncrl.journal import queue_state, statements
from asyncrl.journal.compaction import compact
from asyncrl.journal.queue_state import StoredGroup
from asyncrl.records import Finish, Observed, ScoredSequence, Segment, Task, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.policy import ORDERS
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.drain import Drain
from asyncrl.rollout.filter import Oversampling
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.request_rules import Limits, RequestRules
from asyncrl.rollout.turn_player import TurnPlayer
from asyncrl.serving import publication
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.delta import DeltaRule, read_manifest
from asyncrl.serving.fleet import Router
from asyncrl.serving.membership import ServerLoop
from asyncrl.serving.publication import Publication
from asyncrl.tasks.selection import RowSelection
from asyncrl.turns.conversation import Conversation
from asyncrl.turns.environment import Recovery

MAX_SEEDS = 400
NUM_TRIES = 8
"""Tries of the first seed: the journal's thread takes real time, so that a wait for it may be over
before the moment that shows the mutation."""
CAUGHT_BY = {
    "trajectories_that_continue_after_a_drain": 308,
    "a_lost_segment": 37,
    "chunks_that_are_not_counted": 19,
    "a_lost_trainer_that_nobody_notices": 472,
    "a_dead_trainers_take_that_continues": 336,
    "a_fault_that_counts_as_wrong": 10,
    "weights_that_are_not_compared": 26,
    "deltas_of_versions_that_no_server_keeps": 34,
    "a_batch_given_before_it_is_on_disk": 1,
    "tokens_that_are_not_counted_when_a_stream_breaks": 4,
    "uses_that_a_restart_forgets": 53,
    "repeated_groups_that_are_compacted": 181,
    "deltas_of_any_base": 93,
    "a_publish_that_does_not_drain": 30,
    "observations_that_are_counted_as_sampled": 4,
    "observations_that_are_trained": 4,
    "turns_that_are_played_twice": 4,
    "environments_that_continue_whatever_they_say": 27,
    "verdicts_that_are_given_twice": 4,
    "observations_that_a_restart_writes_otherwise": 48,
    "ends_of_turns_that_are_lost": 9,
    "late_tokens_that_open_the_next_turn": 23,
    "answers_that_are_awaited_after_a_drop": 18,
    "a_drain_that_forgets_trajectories_between_two_turns": 30,
    "choices_that_a_restart_forgets": 6,
    "no_staleness_bound": 1,
    "a_tag_from_the_salt": 1,
    "one_prefix_cache_for_all_versions": 1,
    "groups_that_are_due_and_left_behind": 1,
    "a_commit_that_covers_one_step_too_many": 3,
    "stale_groups_that_are_kept": 2,
    "a_round_that_ends_before_its_batch_is_ready": 1,
}
"""The seed that is tried first. After a change of the simulation another one catches the mutation, later."""
Mutation = Callable[[], contextlib.AbstractContextManager[Any]]


def two_batches_too_many(queue: ReplayQueue) -> bool:
    if queue.is_catching_up() or queue.version is None:
        return False
    bound = min(queue.settings.max_staleness + queue.version + 3, queue.settings.num_steps)
    return queue.num_admitted - queue.num_dropped < bound * queue.settings.groups_per_batch


def whoever_is_ready(live: Any, step: int, *, batch_size: int, **_: Any) -> Any:
    ready = [group for group in live if group.state is GroupState.READY]
    return ready[:batch_size] if len(ready) >= batch_size else None


@contextlib.contextmanager
def no_staleness_bound() -> Iterator[None]:
    with (
        mock.patch.object(ReplayQueue, "can_admit", two_batches_too_many),
        mock.patch("asyncrl.replay.queue.choose", whoever_is_ready),
        mock.patch.object(ReplayQueue, "_check_staleness", lambda *_: None),
    ):
        yield


def a_group_taken_twice() -> Any:
    original = ReplayQueue.take

    def take(queue: ReplayQueue, step: int) -> Any:
        batch = original(queue, step)
        for group in batch or []:
            group.state = GroupState.READY
            queue.live[group.group_id] = group
        return batch

    return mock.patch.object(ReplayQueue, "take", take)


def a_lost_segment() -> Any:
    original = Confirmation.feed
    return mock.patch.object(Confirmation, "feed", lambda self, chunk: original(self, chunk)[:1])


def a_tag_from_the_salt() -> Any:
    original = Confirmation.feed

    def feed(self: Confirmation, chunk: Any) -> Any:
        return [dataclasses.replace(s, version=self.salt_version) for s in original(self, chunk)]

    return mock.patch.object(Confirmation, "feed", feed)


def chunks_that_are_not_counted() -> Any:
    original = Confirmation.feed

    def feed(self: Confirmation, chunk: Any) -> Any:
        return original(self, msgspec.structs.replace(chunk, num_tokens_so_far=None))

    return mock.patch.object(Confirmation, "feed", feed)


def one_prefix_cache_for_all_versions() -> Any:
    return mock.patch.object(Router, "salt", lambda *_: "same")


def groups_that_are_due_and_left_behind() -> Any:
    def choose(live: Any, step: int, *, batch_size: int, order: str, **_: Any) -> Any:
        ready = sorted((g for g in live if g.state is GroupState.READY), key=ORDERS[order])
        return sorted(ready[:batch_size], key=lambda g: g.group_id) if len(ready) >= batch_size else None

    return mock.patch("asyncrl.replay.queue.choose", choose)


def a_lost_trainer_that_nobody_notices() -> Any:
    return mock.patch.object(TrainerWire, "_has_lost_versions", lambda *_: False)


def a_dead_trainers_take_that_continues() -> Any:
    return mock.patch.object(TrainerSession, "is_newest", lambda *_: True)


def a_fault_that_counts_as_wrong() -> Any:
    original = Grader.grade

    async def grade(self: Grader, task: Any, response: str, *told: Any, **keywords: Any) -> Any:
        score = await original(self, task, response, *told, **keywords)
        if score.correctness is not None:
            return score
        return dataclasses.replace(score, outcome="wrong", correctness=0.0, reward=0.0)

    return mock.patch.object(Grader, "grade", grade)


def weights_that_are_not_compared() -> Any:
    async def agree(*_: Any) -> None:
        return None

    return mock.patch.object(publication, "_difference", agree)


def deltas_of_any_base() -> Any:
    def read(folder: Path) -> dict[str, tuple[str, str]]:
        return {name: (AnyDigest(), digest) for name, (_, digest) in read_manifest(folder).items()}

    return mock.patch("asyncrl.serving.delta.read_manifest", read)


class AnyDigest(str):
    """Equal to each digest."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def results_of_deltas_that_are_not_compared() -> Any:
    def read(folder: Path) -> dict[str, tuple[str, str]]:
        return {name: (base, NewDigest(digest)) for name, (base, digest) in read_manifest(folder).items()}

    return mock.patch("asyncrl.serving.delta.read_manifest", read)


class NewDigest(str):
    """Equal to each digest, but not while it is asked whether a delta came twice."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str(self) == other

    def __ne__(self, other: object) -> bool:
        return False


def deltas_without_a_way_out() -> Any:
    original = Publication.sources
    return mock.patch.object(Publication, "sources", lambda publication: original(publication)[:1])


def deltas_of_versions_that_no_server_keeps() -> Any:
    original = DeltaRule.sends_delta

    def sends(rule: DeltaRule, share: float | None) -> bool:
        rule._is_kept = True
        return original(rule, share)

    return mock.patch.object(DeltaRule, "sends_delta", sends)


def a_batch_given_before_it_is_on_disk() -> Any:
    async def barrier(_: Any) -> None:
        return None

    return mock.patch("simulation.journal.SimulatedJournal.barrier", barrier)


def a_commit_that_covers_one_step_too_many() -> Any:
    original = ReplayQueue.commit
    return mock.patch.object(
        ReplayQueue, "commit", lambda queue, version, folder: original(queue, version + 1, folder)
    )


def tokens_that_are_not_counted_when_a_stream_breaks() -> Any:
    return mock.patch.object(ReplayQueue, "discard", lambda *_: None)


def stale_groups_that_are_kept() -> Any:
    return mock.patch.object(ReplayQueue, "_drop_stale", lambda *_: False)


def a_round_that_ends_before_its_batch_is_ready() -> Any:
    def is_over(round_: Oversampling) -> bool:
        ready = sum(group.state is GroupState.READY for group in round_.queue.live.values())
        return round_.oversampling is not None and ready > 0

    return mock.patch.object(Oversampling, "is_over", is_over)


def uses_that_a_restart_forgets() -> Any:
    original = queue_state.groups_taken_since

    def groups_taken_since(*arguments: Any, **sizes: Any) -> list[StoredGroup]:
        groups = original(*arguments, **sizes)
        for group in groups:
            group.num_uses = 1
        return groups

    return mock.patch.object(queue_state, "groups_taken_since", groups_taken_since)


def repeated_groups_that_are_compacted() -> Any:
    return mock.patch(
        "asyncrl.journal.compaction.compact", lambda first, end, repeat_reach=0: compact(first, end)
    )


def repetitions_that_are_not_journaled() -> Any:
    return mock.patch("asyncrl.journal.statements.repeated", lambda *_: [])


def a_publish_that_does_not_drain() -> Any:
    return mock.patch.object(Drain, "is_idle", lambda *_: True)


def servers_that_are_not_waited_for_until_they_sleep() -> Any:
    return mock.patch.object(ServerLoop, "holds_memory", lambda _: False)


def trajectories_that_continue_after_a_drain() -> Any:
    return mock.patch.object(RequestRules, "is_outlived", lambda *_: False)


def observations_that_are_counted_as_sampled() -> Any:
    return mock.patch.object(Trajectory, "num_sampled_tokens", Trajectory.num_response_tokens)


def observations_that_are_trained() -> Any:
    original = ScoredSequence.of

    def of(trajectory: Trajectory, **scored: float) -> ScoredSequence:
        sequence = original(trajectory, **scored)
        for first, end in sequence.observed:
            version = sequence.token_versions[max(0, first - 1)]
            for column, value in (
                (sequence.behavior_logprobs, -1.0),
                (sequence.token_versions, version),
                (sequence.are_continued, False),
            ):
                column[first:first] = [value] * (end - first)
        return dataclasses.replace(sequence, observed=[])

    return mock.patch.object(ScoredSequence, "of", of)


def turns_that_are_played_twice() -> Any:
    original = Conversation._timed_answer

    async def answer(conversation: Conversation, turn: Any, finish: Finish) -> Any:
        await original(conversation, turn, finish)
        return await original(conversation, turn, finish)

    return mock.patch.object(Conversation, "_timed_answer", answer)


def environments_that_continue_whatever_they_say() -> Any:
    known = SimpleNamespace(REPLAYABLE=Recovery.REPLAYABLE, NEITHER=None)
    return mock.patch("asyncrl.turns.conversation.Recovery", known)


def verdicts_that_are_given_twice() -> Any:
    original = TurnPlayer._end

    def end(player: TurnPlayer, group: Group, trajectory: Trajectory, ended: Any) -> None:
        original(player, group, trajectory, ended)
        group.scores.pop(trajectory.trajectory_id, None)

    return mock.patch.object(TurnPlayer, "_end", end)


def observations_that_a_restart_writes_otherwise() -> Any:
    return mock.patch.object(
        queue_state, "Observed", lambda tokens, notes: Observed([*tokens[:-1], tokens[-1] + 1], notes)
    )


def ends_of_turns_that_are_lost() -> Any:
    return mock.patch.object(Limits, "finish_reached", lambda *_: None)


@contextlib.contextmanager
def late_tokens_that_open_the_next_turn() -> Iterator[None]:
    """Those after a stop string, which their server sampled before it heard of it."""
    late: dict[str, list[Segment]] = {}
    receive, observe, original = Generator._receive, ReplayQueue.observe, Confirmation.cut

    def keeping(generator: Generator, group: Group, request: Any, chunk: Any) -> Any:
        def cut(self: Confirmation, segments: list[Segment], num_tokens: int) -> list[Segment]:
            kept = original(self, segments, num_tokens)
            num_kept = sum(len(segment.tokens) for segment in kept)
            late[request.trajectory.trajectory_id] = [
                dataclasses.replace(
                    segments[-1],
                    tokens=segments[-1].tokens[-n:],
                    behavior_logprobs=segments[-1].behavior_logprobs[-n:],
                )
                for n in [sum(len(segment.tokens) for segment in segments) - num_kept]
                if 0 < n <= len(segments[-1].tokens)
            ]
            return kept

        with mock.patch.object(Confirmation, "cut", cut):
            return receive(generator, group, request, chunk)

    def observing(queue: ReplayQueue, group: Group, trajectory: Trajectory, observation: Observed) -> None:
        observe(queue, group, trajectory, observation)
        queue.append(group, trajectory, late.pop(trajectory.trajectory_id, []), None)

    with (
        mock.patch.object(Generator, "_receive", keeping),
        mock.patch.object(ReplayQueue, "observe", observing),
    ):
        yield


def answers_that_are_awaited_after_a_drop() -> Any:
    async def end_early(_: TurnPlayer) -> None:
        """Abandons none."""

    return mock.patch.object(TurnPlayer, "loop", end_early)


def a_drain_that_forgets_trajectories_between_two_turns() -> Any:
    return mock.patch.object(Drain, "_has_begun_group", lambda _: False)


def choices_that_know_verdicts_of_their_own_version() -> Any:
    original = RowSelection.learn

    def learn(selection: RowSelection, version: int) -> None:
        # With each choice again: what was graded meanwhile is known, too.
        selection._version = -1
        original(selection, version + 1)

    return mock.patch.object(RowSelection, "learn", learn)


def pilots_whose_extension_is_not_journaled() -> Any:
    original = statements.joined

    def joined(group_id: int, task: Task, trajectories: Any, *, first: int) -> Any:
        return [] if first else original(group_id, task, trajectories, first=first)

    return mock.patch.object(statements, "joined", joined)


def choices_that_a_restart_forgets() -> Any:
    return mock.patch("asyncrl.controller.assemble.read_admissions", lambda journal: [])


@pytest.mark.parametrize(
    "mutation",
    [
        no_staleness_bound,
        a_group_taken_twice,
        a_lost_segment,
        a_tag_from_the_salt,
        chunks_that_are_not_counted,
        one_prefix_cache_for_all_versions,
        groups_that_are_due_and_left_behind,
        a_lost_trainer_that_nobody_notices,
        a_dead_trainers_take_that_continues,
        a_fault_that_counts_as_wrong,
        weights_that_are_not_compared,
        deltas_of_versions_that_no_server_keeps,
        a_batch_given_before_it_is_on_disk,
        a_commit_that_covers_one_step_too_many,
        tokens_that_are_not_counted_when_a_stream_breaks,
        stale_groups_that_are_kept,
        a_round_that_ends_before_its_batch_is_ready,
        uses_that_a_restart_forgets,
        repeated_groups_that_are_compacted,
        repetitions_that_are_not_journaled,
        a_publish_that_does_not_drain,
        servers_that_are_not_waited_for_until_they_sleep,
        trajectories_that_continue_after_a_drain,
        observations_that_are_counted_as_sampled,
        observations_that_are_trained,
        turns_that_are_played_twice,
        environments_that_continue_whatever_they_say,
        verdicts_that_are_given_twice,
        observations_that_a_restart_writes_otherwise,
        ends_of_turns_that_are_lost,
        late_tokens_that_open_the_next_turn,
        answers_that_are_awaited_after_a_drop,
        a_drain_that_forgets_trajectories_between_two_turns,
        choices_that_know_verdicts_of_their_own_version,
        choices_that_a_restart_forgets,
        pilots_whose_extension_is_not_journaled,
    ],
)
def test_a_rule_taken_out_is_caught(mutation: Mutation) -> None:
    seeds = [*[CAUGHT_BY.get(mutation.__name__, 0)] * NUM_TRIES, *range(MAX_SEEDS)]
    with mutation():
        caught = next((seed for seed in seeds if run_schedule(seed).violations), None)
    assert caught is not None, f"{MAX_SEEDS} schedules did not notice {mutation.__name__}"


@pytest.mark.parametrize(
    "mutation", [deltas_of_any_base, results_of_deltas_that_are_not_compared, deltas_without_a_way_out]
)
def test_a_rule_of_copies_taken_out_is_caught(mutation: Mutation) -> None:
    seeds = [CAUGHT_BY.get(mutation.__name__, 0), *range(MAX_SEEDS)]
    with mutation():
        assert any(run_schedule(seed, draw_copies(seed)).violations for seed in seeds)


def test_copies_that_fail_in_every_way_are_healed() -> None:
    reached = set[str]()
    for seed in range(6):
        world = run_schedule(seed, draw_copies(seed))
        assert not world.violations
        reached |= world.reached
    assert {"a delta", "a delta that is healed"} <= reached
