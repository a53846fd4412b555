"""The replay queue: groups from admission to use. Owns the staleness bound; every change is journaled.

Admission: at trainer version v a group may enter while, with it,
    admitted - dropped <= (max_staleness + v + 1) * groups_per_batch.
Use: a group admitted at version v has the deadline v + max_staleness, the last version of the trainer that
may take it. A batch is groups_per_batch ready groups in the order of `policy`, given only when what it leaves
behind can still be taken in time. It is named by the version of the trainer that takes it, and trained by
step version + 1.

Why no token in a batch is older than max_staleness allows. Let n(d) be the untaken groups with deadline <= d,
B the batch size, s the version that takes the next batch. Claim: n(d) <= (d - s + 1) B for each d >= s.
- A take leaves n(d) <= (d - s) B for each d (that is the condition checked), which is the claim for s + 1;
  for d = s it says that no deadline passes.
- An admission at version v has the latest deadline of all, v + max_staleness; s is v or, while the trainer
  works on the batch of v, v + 1. All untaken groups are then admitted - dropped - s B <= (max_staleness + v
  + 1 - s) B, the claim.
- A drop lowers n.
So a batch that satisfies the condition exists as soon as enough groups are ready. A group's tokens are no
older than its admission, because a server serves nothing older than the version announced then (`append`
checks it).

Not thread-safe; one event loop owns it. Nothing here waits: `changed` wakes those that do.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from asyncrl.errors import QueueError, StalenessBreach
from asyncrl.journal import queue_state, statements
from asyncrl.journal.connection import DROPPED, GENERATED, REPEATED, TRAINED, Statement, bump, read_counters
from asyncrl.journal.conservation import token_fates
from asyncrl.journal.packing import of_lines
from asyncrl.journal.writer import Journal
from asyncrl.records import (
    Columns,
    DropReason,
    Finish,
    Observed,
    PolicyVersion,
    RowVisit,
    Score,
    Segment,
    Task,
    Trajectory,
    TurnAdvantages,
)
from asyncrl.replay.group import Group, GroupState, TaskOf, restored_group, trajectory_id
from asyncrl.replay.policy import choose
from asyncrl.replay.settings import QueueSettings
from asyncrl.system.plugins import cause_of


class Repeats(Protocol):
    """Groups of earlier batches that join later ones."""

    def draw(self, version: PolicyVersion) -> list[Group]:
        """Those that join the batch of `version`."""

    def add(self, groups: Iterable[Group]) -> None:
        """The new groups of a batch."""

    def restore(self, journal: Journal, task_of: TaskOf) -> None:
        """Continues from a journal."""


class ReplayQueue:
    """`changed` is called after each change that could end a wait. Without `repeats` groups train once."""

    def __init__(
        self,
        journal: Journal,
        settings: QueueSettings,
        *,
        has_signal: Callable[[Group], bool],
        repeats: Repeats | None = None,
        changed: Callable[[], None] = lambda: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.repeats = repeats
        self.has_signal = has_signal
        """Whether a group has a gradient, by its raw correctness."""
        self._aborted_lengths: list[int] = []
        """Response tokens of each trajectory that abort_staleness dropped, until they are popped."""
        self.version: PolicyVersion | None = None
        """The trainer's version; None until its first take."""
        self.highest_version: PolicyVersion = 0
        """The newest version that made a journaled token or was announced."""
        self.catch_up_version: PolicyVersion = 0
        """A trainer that went back to a checkpoint repeats its recorded batches up to here before anything is
        generated again: versions within a trajectory never decrease."""
        self.num_admitted = 0
        """Ever, dropped ones included: also the position in the data order."""
        self.num_dropped = 0
        self.num_dropped_at_take = 0
        """As the last batch left the queue."""
        self.num_ready = 0
        """Groups that became ready in this process: with the counts above, whether anything moved."""
        self.live: dict[int, Group] = {}
        """Open and ready groups, in admission order."""
        self.committed_version: PolicyVersion = 0
        """The newest one that a checkpoint was committed of, in this process."""
        self.taken_tokens: dict[PolicyVersion, int] = {}
        """Version that took a batch -> tokens of its new groups, of the batches that no checkpoint covers."""
        self.repeated_tokens: dict[PolicyVersion, int] = {}
        """Likewise for the groups that a batch repeats."""
        self.num_steps_taken = 0
        """Batches ever taken: also the version that takes the next new one."""
        self.counters: dict[str, int] = {}
        self.visited: Callable[[Task, RowVisit], None] = lambda task, visit: None
        """Told of each graded group, as the journal is."""
        self._changed = changed
        self._wall_clock = wall_clock

    def restore(self, task_of: TaskOf) -> None:
        """Continues an earlier process from what the journal holds; for a new queue, before its first use."""
        totals, samples = queue_state.read_totals(self.journal), self.settings.samples_per_group
        self.num_admitted, self.num_dropped = totals.num_admitted, totals.num_dropped
        self.num_dropped_at_take = totals.num_dropped
        self.num_steps_taken = totals.num_steps_taken
        self.highest_version = max(totals.highest_token_version, totals.num_steps_taken)
        self.catch_up_version = self.highest_version
        for stored in queue_state.live_groups(self.journal, samples_per_group=samples):
            self.live[stored.group_id] = restored_group(stored, task_of)
        self.counters.update(read_counters(self.journal))
        self.taken_tokens.update(queue_state.taken_tokens(self.journal))
        self.repeated_tokens.update(queue_state.repeated_tokens(self.journal))
        if self.repeats is not None:
            self.repeats.restore(self.journal, task_of)

    def is_catching_up(self) -> bool:
        """True while the trainer has not (again) reached the newest version there was."""
        return self.version is None or self.version < self.catch_up_version

    def reached_version(self) -> PolicyVersion:
        """The newest version that the trainer had in the run so far; it never decreases, not even where the
        trainer goes back to a checkpoint."""
        return max(self.version or 0, self.catch_up_version)

    def can_admit(self) -> bool:
        """Whether the staleness bound and the length of the run leave room for one more group."""
        if self.is_catching_up():
            return False
        assert self.version is not None
        return self.num_admitted - self.num_dropped < self.settings.most_admitted(self.version)

    def admit(self, task: Task) -> Group:
        """A new open group for `task`. Raises QueueError when `can_admit` is false."""
        if not self.can_admit() or self.version is None:
            raise QueueError(f"No group may be admitted at version {self.version}: {self.num_admitted} were.")
        group_id, num_samples = self.num_admitted, self.settings.samples_per_group
        trajectories = [
            Trajectory(trajectory_id(group_id, sample), task.prompt_tokens, is_greedy=sample == num_samples)
            for sample in range(self.settings.num_at_admission())
        ]
        group = Group(group_id, task, self.version, trajectories)
        self.num_admitted += 1
        self.live[group_id] = group
        seconds = self._wall_clock()
        self.journal.write(
            *statements.admitted(group_id, task, trajectories, version=self.version, seconds=seconds)
        )
        return group

    def extend(self, group: Group) -> None:
        """An open group that was admitted with its pilot gets its other trajectories."""
        assert group.state is GroupState.OPEN
        first, task = len(group.trajectories), group.task
        more = [
            Trajectory(trajectory_id(group.group_id, sample), task.prompt_tokens)
            for sample in range(first, self.settings.samples_per_group)
        ]
        group.trajectories += more
        self.journal.write(*statements.joined(group.group_id, task, more, first=first))

    def stream_from(self, server: str, trajectories: Sequence[Trajectory]) -> None:
        """Records which server continues them; no state depends on it."""
        self.journal.write(*statements.streamed(server, trajectories, seconds=self._wall_clock()))

    def append(
        self, group: Group, trajectory: Trajectory, segments: Sequence[Segment], finish: Finish | None
    ) -> None:
        """Adds confirmed segments to a trajectory of an open group, and its end when it has come."""
        assert group.state is GroupState.OPEN and trajectory.finish is None, trajectory.trajectory_id
        num_tokens = sum(len(segment.tokens) for segment in segments)
        rows: list[Statement] = [self.count(GENERATED, num_tokens)]
        for segment in segments:
            newest = trajectory.newest_version()
            newest = group.admitted_version if newest is None else newest
            if segment.version < newest:
                raise StalenessBreach(
                    f"{trajectory.trajectory_id} got tokens of version {segment.version} after version "
                    f"{newest}: a server serves weights older than the ones announced at admission."
                )
            rows += statements.confirmed(trajectory, segment)
            self.highest_version = max(self.highest_version, segment.version)
            trajectory.extend(segment)
        if finish is not None:
            trajectory.finish = finish
            rows.append(statements.finished(trajectory.trajectory_id, finish))
        self.journal.write(*rows)

    def observe(self, group: Group, trajectory: Trajectory, observation: Observed) -> None:
        """An answer to a turn that ended joins the trajectory. No server generates it, so no account of
        tokens has it."""
        assert group.state is GroupState.OPEN and trajectory.finish is None, trajectory.trajectory_id
        assert trajectory.turn_finish is not None, f"{trajectory.trajectory_id}: its turn has not ended"
        self.journal.write(statements.observed(trajectory, observation))
        trajectory.observe(observation)

    def end(
        self,
        group: Group,
        trajectory: Trajectory,
        finish: Finish,
        score: Score | None,
        text: str,
        branch_texts: Mapping[str, str] | None = None,
    ) -> None:
        """The trajectory is over; with the score that its environment gave, in one transaction: the row's
        verifier must not judge it after a crash between the two. `branch_texts` as in `score`."""
        assert group.state is GroupState.OPEN and trajectory.finish is None, trajectory.trajectory_id
        trajectory.finish = finish
        rows = [statements.finished(trajectory.trajectory_id, finish)]
        if score is not None:
            rows += self._scored(group, trajectory, score, text, branch_texts or {})
        self.journal.write(*rows)

    def discard(self, num_tokens: int, reason: DropReason) -> None:
        """Counts tokens that were generated but never became part of a trajectory."""
        if num_tokens:
            self.journal.write(self.count(GENERATED, num_tokens), self.count(DROPPED + reason, num_tokens))

    def score(
        self,
        group: Group,
        trajectory: Trajectory,
        score: Score,
        text: str,
        branch_texts: Mapping[str, str] | None = None,
    ) -> None:
        """Records the verdict on a finished trajectory; `branch_texts` are what branches that have a score
        each were judged by."""
        assert group.state is GroupState.OPEN and trajectory.finish is not None
        self.journal.write(*self._scored(group, trajectory, score, text, branch_texts or {}))

    def score_all(self, group: Group, scored: Sequence[tuple[Trajectory, Score, str]]) -> None:
        """Records verdicts that were given together, in one transaction: after a crash between two of them
        the others would be judged without the first."""
        assert group.state is GroupState.OPEN and all(t.finish is not None for t, _, _ in scored)
        self.journal.write(*(row for each in scored for row in self._scored(group, *each, {})))

    def add_columns(self, group: Group, found: Mapping[str, Columns]) -> None:
        """Records what came for the tokens of a finished trajectory and its branches, in one transaction."""
        assert group.state is GroupState.OPEN
        group.columns.update(found)
        self.journal.write(*of_lines(found))

    def _scored(
        self,
        group: Group,
        trajectory: Trajectory,
        score: Score,
        text: str,
        branch_texts: Mapping[str, str],
    ) -> list[Statement]:
        group.scores[trajectory.trajectory_id] = score
        rows = [statements.graded(trajectory.trajectory_id, score, text)]
        rows += [
            statements.branch_graded(name, each, branch_texts[name]) for name, each in score.branches.items()
        ]
        if score.trace:
            rows.append(statements.failed(trajectory.trajectory_id, cause_of(score.detail), score.trace))
        return rows

    def make_ready(
        self,
        group: Group,
        advantages: Mapping[str, float],
        turn_advantages: Mapping[str, TurnAdvantages] | None = None,
    ) -> None:
        """The group may be taken. Trajectories without an advantage (faults, greedy) leave it, counted.
        `turn_advantages` of those whose turns differ."""
        assert group.state is GroupState.OPEN and group.scores.keys() >= advantages.keys()
        group.state, group.advantages = GroupState.READY, dict(advantages)
        group.turn_advantages = dict(turn_advantages or {})
        self.num_ready += 1
        left = [t for t in group.trajectories if t.trajectory_id not in advantages]
        self.journal.write(
            *statements.made_ready(
                group.group_id, advantages, group.turn_advantages, group.branch_advantages()
            ),
            *self._answers(group),
            *(
                self.count(
                    DROPPED + (DropReason.BASELINE if t.is_greedy else DropReason.FAULT),
                    t.num_sampled_in_all(),
                )
                for t in left
            ),
        )
        self._changed()

    def drop(self, group: Group, reason: DropReason) -> None:
        """The group ends untrained; its place is free again."""
        assert group.state in (GroupState.OPEN, GroupState.READY)
        tokens = group.trainable_tokens()
        group.state, group.reason = GroupState.DROPPED, reason
        del self.live[group.group_id]
        self.num_dropped += 1
        rows = [statements.dropped(group.group_id, reason), self.count(DROPPED + reason, tokens)]
        self.journal.write(*rows, *(self._answers(group) if reason is DropReason.NO_SIGNAL else ()))
        self._changed()

    def announce(self, version: PolicyVersion) -> None:
        """The trainer published `version` (lower than before when it resumed from an older checkpoint)."""
        if version > self.num_steps_taken:
            raise QueueError(
                f"The trainer asks for the batch of step {version + 1} but only {self.num_steps_taken} "
                f"batches were ever taken from {self.journal.path}: checkpoint and journal are of different "
                f"runs. Use another run_folder."
            )
        if version < self.highest_version:
            # Also when the trainer takes at the same version again: the one that it lost has made tokens.
            self.catch_up_version = self.highest_version
        self.version = version
        self.highest_version = max(self.highest_version, version)
        self._changed()

    def choose(self, version: PolicyVersion) -> list[Group] | None:
        """The groups that `take` would give the trainer of `version` now; None while it would wait."""
        return choose(
            list(self.live.values()),
            version,
            batch_size=self.settings.groups_per_batch,
            max_staleness=self.settings.max_staleness,
            order=self.settings.order,
            has_signal=self.has_signal,
        )

    def take(self, version: PolicyVersion) -> list[Group] | None:
        """The batch for the trainer of `version`, or None while it is not ready: new groups, whose
        `taken_version` it is, before repeated ones. Each version takes here once: a take that is asked again
        is answered from the journal (`load_batch`). Raises StalenessBreach."""
        assert version == self.num_steps_taken == self.version, (version, self.num_steps_taken, self.version)
        while (batch := self.choose(version)) is not None:
            # Tokens may have been confirmed since the last sweep.
            if not self._drop_stale(batch, version):
                break
        if batch is None:
            return None
        again = [] if self.repeats is None else self.repeats.draw(version)
        for group in [*batch, *again]:
            self._check_staleness(group, version)
        for group in batch:
            group.state, group.taken_version, group.num_uses = GroupState.TAKEN, version, 1
            del self.live[group.group_id]
        if self.repeats is not None:
            self.repeats.add(batch)
        self.num_steps_taken += 1
        self.num_dropped_at_take = self.num_dropped
        self.taken_tokens[version] = sum(group.trainable_tokens() for group in batch)
        self.repeated_tokens[version] = sum(group.trainable_tokens() for group in again)
        self.journal.write(
            *statements.taken((group.group_id for group in batch), version),
            *statements.repeated((group.group_id for group in again), version),
        )
        self._drop_stale(list(self.live.values()), version + 1)
        self._changed()
        return [*batch, *again]

    def _drop_stale(self, groups: Sequence[Group], version: PolicyVersion) -> bool:
        """Drops those of `groups` that are too old for the batch of `version`; whether there was one."""
        if self.settings.abort_staleness is None:
            return False
        oldest = version - self.settings.abort_staleness
        stale = [group for group in groups if group.num_tokens() and group.oldest_version() < oldest]
        for group in stale:
            self._aborted_lengths += [t.num_sampled_in_all() for t in group.trajectories]
            self.drop(group, DropReason.STALE)
        return bool(stale)

    def pop_aborted_lengths(self) -> list[int]:
        """Response tokens of each trajectory that abort_staleness dropped since the last call."""
        lengths, self._aborted_lengths = self._aborted_lengths, []
        return lengths

    def commit(self, version: PolicyVersion, checkpoint_folder: str) -> int:
        """The batches of all versions below `version` are trained for good; how many groups are newly so."""
        covered = [taken for taken in self.taken_tokens if taken < version]
        tokens = sum(self.taken_tokens.pop(taken) for taken in covered)
        repeated = sum(self.repeated_tokens.pop(taken, 0) for taken in covered)
        self.journal.write(
            *statements.committed(version, checkpoint_folder, seconds=self._wall_clock()),
            self.count(TRAINED, tokens),
            self.count(REPEATED, repeated),
        )
        self.committed_version = max(self.committed_version, version)
        return len(covered) * self.settings.groups_per_batch

    def conservation(self) -> dict[str, int]:
        """Tokens: generated, trained, taken, queued, and dropped by reason; generated is the others' sum."""
        queued = sum(group.trainable_tokens() for group in self.live.values())
        return token_fates(self.counters, taken=sum(self.taken_tokens.values()), queued=queued)

    def _answers(self, group: Group) -> list[Statement]:
        """The policy's answers, which the record of the group's row gets."""
        scores = list(group.sampled_scores().values())
        correct = [score.correctness for score in scores if score.correctness is not None]
        version = self.reached_version()
        if correct:
            mean = sum(correct) / len(correct)
            self.visited(group.task, RowVisit(group.group_id, version, len(correct), mean))
        return statements.answered(group.group_id, group.task.task_id, scores, version)

    def _check_staleness(self, group: Group, version: PolicyVersion) -> None:
        if group.oldest_version() < version - self.settings.max_staleness:
            raise StalenessBreach(
                f"Group {group.group_id} holds tokens of version {group.oldest_version()} at step "
                f"{version + 1}, which trains version {version}; rollout.max_staleness is "
                f"{self.settings.max_staleness}."
            )

    def count(self, counter: str, amount: int) -> Statement:
        """The statement that adds to an account of tokens, which the memory already has."""
        self.counters[counter] = self.counters.get(counter, 0) + amount
        return bump(counter, amount)
