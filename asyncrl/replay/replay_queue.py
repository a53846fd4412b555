"""The replay queue: groups from admission to use. Owns the staleness bound; every change is journaled.

Admission: at trainer version v a group may enter while, with it,
    admitted - dropped <= (max_staleness + v + 1) * groups_per_batch.
Use: a group admitted at version v has the deadline v + max_staleness, the last step that may take it. The
batch of step s is groups_per_batch ready groups in the order of `policy`, given only when what it leaves
behind can still be taken in time.

Why no token in a batch is older than max_staleness allows. Let n(d) be the untaken groups with deadline <= d,
B the batch size, s the next step to take. Claim: n(d) <= (d - s + 1) B for each d >= s.
- A take leaves n(d) <= (d - s) B for each d (that is the condition checked), which is the claim for s + 1;
  for d = s it says that no deadline passes.
- An admission at version v has the latest deadline of all, v + max_staleness; s is v or, while the trainer
  works on step v, v + 1. All untaken groups are then admitted - dropped - s B <= (max_staleness + v + 1 - s)
  B, the claim.
- A drop lowers n.
So a batch that satisfies the condition exists as soon as enough groups are ready. A group's tokens are no
older than its admission, because a server serves nothing older than the version announced then (`append`
checks it).

Not thread-safe; one event loop owns it. Nothing here waits: `changed` wakes those who do.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from asyncrl.errors import QueueError, StalenessBreach
from asyncrl.journal.writer import Journal, Statement, bump, pack_logprobs, pack_tokens
from asyncrl.records import Finish, PolicyVersion, Score, Segment, Task, Trajectory
from asyncrl.replay.group import DropReason, Group, GroupState, trajectory_id
from asyncrl.replay.policy import choose
from asyncrl.replay.repetition import Repetition, repetition_rows
from verifiers.storable import storable

GENERATED = "tokens_generated"
TRAINED = "tokens_trained"
"""Each token once, when a checkpoint first holds it."""
REPEATED = "tokens_repeated"
"""Of groups that were trained again, each time."""
DROPPED = "tokens_dropped:"


class ReplayQueue:
    """`changed` is called after each change that could end somebody's wait."""

    def __init__(
        self,
        journal: Journal,
        *,
        groups_per_batch: int,
        samples_per_group: int,
        max_staleness: int,
        num_steps: int,
        has_signal: Callable[[Group], bool],
        has_greedy: bool = False,
        order: str = "admission",
        abort_staleness: int | None = None,
        repeated_groups_per_batch: int = 0,
        max_uses: int = 2,
        always_teaches: bool = False,
        changed: Callable[[], None] = lambda: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.journal = journal
        self.groups_per_batch = groups_per_batch
        self.samples_per_group = samples_per_group
        self.max_staleness = max_staleness
        self.num_steps = num_steps
        self.has_greedy = has_greedy
        """Each group has one more trajectory, the last, greedy and never trained."""
        self.order = order
        """A key of `policy.ORDERS`."""
        self.abort_staleness = abort_staleness
        """Groups whose oldest token would be older than that at the next take are dropped: below
        `max_staleness`, which bounds what is admitted, a limit on what became old in flight."""
        self.repetition = Repetition(
            groups_per_batch=repeated_groups_per_batch,
            max_uses=max_uses,
            max_staleness=max_staleness if abort_staleness is None else abort_staleness,
            always_teaches=always_teaches,
        )
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
        self.num_ready = 0
        """Groups that became ready in this process: with the counts above, whether anything moved."""
        self.live: dict[int, Group] = {}
        """Open and ready groups, in admission order."""
        self.committed_version: PolicyVersion = 0
        """The newest one that a checkpoint was committed of, in this process."""
        self.taken_tokens: dict[int, int] = {}
        """Step -> tokens of a batch's new groups that were taken and are not covered by a checkpoint."""
        self.repeated_tokens: dict[int, int] = {}
        """The same of the groups that it repeats."""
        self.num_steps_taken = 0
        self.counters: dict[str, int] = {}
        self._changed = changed
        self._wall_clock = wall_clock

    def is_catching_up(self) -> bool:
        """True while the trainer has not (again) reached the newest version there was."""
        return self.version is None or self.version < self.catch_up_version

    def can_admit(self) -> bool:
        """Whether the staleness bound and the length of the run leave room for one more group."""
        if self.is_catching_up():
            return False
        assert self.version is not None
        counted = self.num_admitted - self.num_dropped
        bound = (self.max_staleness + self.version + 1) * self.groups_per_batch
        return counted < min(bound, self.num_steps * self.groups_per_batch)

    def admit(self, task: Task) -> Group:
        """A new open group for `task`. Raises QueueError when `can_admit` is false."""
        if not self.can_admit() or self.version is None:
            raise QueueError(f"No group may be admitted at version {self.version}: {self.num_admitted} were.")
        group_id = self.num_admitted
        trajectories = [
            Trajectory(
                trajectory_id(group_id, sample),
                task.prompt_tokens,
                is_greedy=sample == self.samples_per_group,
            )
            for sample in range(self.samples_per_group + self.has_greedy)
        ]
        group = Group(group_id, task, self.version, trajectories)
        self.num_admitted += 1
        self.live[group_id] = group
        self.journal.write(*_admission(group, self._wall_clock()))
        return group

    def stream_from(self, server: str, trajectories: Sequence[Trajectory]) -> None:
        """Records which server continues them, for who asks later; no state depends on it."""
        now = self._wall_clock()
        self.journal.write(
            *(
                (
                    "INSERT INTO streams VALUES (?, ?, ?, ?)",
                    (t.trajectory_id, t.num_response_tokens(), server, now),
                )
                for t in trajectories
            )
        )

    def append(
        self, group: Group, trajectory: Trajectory, segments: Sequence[Segment], finish: Finish | None
    ) -> None:
        """Adds confirmed segments to a trajectory of an open group, and its end when it has come."""
        assert group.state is GroupState.OPEN and trajectory.finish is None, trajectory.trajectory_id
        num_tokens = sum(len(segment.tokens) for segment in segments)
        statements: list[Statement] = [self._count(GENERATED, num_tokens)]
        for segment in segments:
            newest = trajectory.segments[-1].version if trajectory.segments else group.admitted_version
            if segment.version < newest:
                raise StalenessBreach(
                    f"{trajectory.trajectory_id} got tokens of version {segment.version} after version "
                    f"{newest}: a server serves weights older than the ones announced at admission."
                )
            statements.append(_segment_row(trajectory, segment))
            self.highest_version = max(self.highest_version, segment.version)
            extend(trajectory, segment)
        if finish is not None:
            trajectory.finish = finish
            statements.append(
                (
                    "UPDATE trajectories SET finish = ? WHERE trajectory_id = ?",
                    (finish.value, trajectory.trajectory_id),
                )
            )
        self.journal.write(*statements)

    def discard(self, num_tokens: int, reason: DropReason) -> None:
        """Counts tokens that were generated but never became part of a trajectory."""
        if num_tokens:
            self.journal.write(self._count(GENERATED, num_tokens), self._count(DROPPED + reason, num_tokens))

    def score(self, group: Group, trajectory: Trajectory, score: Score, text: str) -> None:
        """Records the verdict on a finished trajectory."""
        assert group.state is GroupState.OPEN and trajectory.finish is not None
        group.scores[trajectory.trajectory_id] = score
        self.journal.write(
            (
                "UPDATE trajectories SET outcome = ?, correctness = ?, reward = ?, extracted = ?, "
                "detail = ?, verify_seconds = ?, text = ? WHERE trajectory_id = ?",
                (
                    score.outcome,
                    score.correctness,
                    score.reward,
                    score.extracted,
                    score.detail,
                    score.seconds,
                    text,
                    trajectory.trajectory_id,
                ),
            )
        )

    def make_ready(self, group: Group, advantages: Mapping[str, float]) -> None:
        """The group may be taken. Trajectories without an advantage (faults, greedy) leave it, counted."""
        assert group.state is GroupState.OPEN and group.scores.keys() >= advantages.keys()
        group.state, group.advantages = GroupState.READY, dict(advantages)
        self.num_ready += 1
        left = [t for t in group.trajectories if t.trajectory_id not in advantages]
        self.journal.write(
            ("UPDATE groups SET state = 'ready' WHERE group_id = ?", (group.group_id,)),
            *(
                ("UPDATE trajectories SET advantage = ? WHERE trajectory_id = ?", (advantage, name))
                for name, advantage in advantages.items()
            ),
            *(
                self._count(
                    DROPPED + (DropReason.BASELINE if t.is_greedy else DropReason.FAULT),
                    t.num_response_tokens(),
                )
                for t in left
            ),
        )
        self._changed()

    def drop(self, group: Group, reason: DropReason) -> None:
        """The group ends untrained; its place is free again."""
        assert group.state in (GroupState.OPEN, GroupState.READY)
        tokens = _trainable_tokens(group)
        group.state, group.reason = GroupState.DROPPED, reason
        del self.live[group.group_id]
        self.num_dropped += 1
        self.journal.write(
            (
                "UPDATE groups SET state = 'dropped', reason = ? WHERE group_id = ?",
                (reason.value, group.group_id),
            ),
            self._count(DROPPED + reason, tokens),
        )
        self._changed()

    def announce(self, version: PolicyVersion) -> None:
        """The trainer published `version` (lower than before when it resumed from an older checkpoint)."""
        if version > self.num_steps_taken:
            raise QueueError(
                f"The trainer asks for step {version} but only {self.num_steps_taken} batches were ever "
                f"taken "
                f"from {self.journal.path}: checkpoint and journal are of different runs. Use another "
                f"run_folder."
            )
        if version < self.highest_version:
            # Also when the trainer asks for the same step again: the version it lost has made tokens.
            self.catch_up_version = self.highest_version
        self.version = version
        self.highest_version = max(self.highest_version, version)
        self._changed()

    def choose(self, step: int) -> list[Group] | None:
        """The groups that `take` would give for `step` now; None while it would wait."""
        return choose(
            list(self.live.values()),
            step,
            batch_size=self.groups_per_batch,
            max_staleness=self.max_staleness,
            order=self.order,
            has_signal=self.has_signal,
        )

    def take(self, step: int) -> list[Group] | None:
        """The groups of the batch of `step`, or None while they are not ready: new ones, whose `step` it is,
        before repeated ones. Each step is taken here once: a take that is asked again is answered from the
        journal (`recovery.load_batch`). Raises StalenessBreach."""
        assert step == self.num_steps_taken == self.version, (step, self.num_steps_taken, self.version)
        while (batch := self.choose(step)) is not None:
            # Tokens may have been confirmed since the last sweep.
            if not self._drop_stale(batch, step):
                break
        if batch is None:
            return None
        repeated = self.repetition.draw(step)
        for group in [*batch, *repeated]:
            self._check_staleness(group, step)
        for group in batch:
            group.state, group.step, group.num_uses = GroupState.TAKEN, step, 1
            del self.live[group.group_id]
        self.repetition.add(batch)
        self.num_steps_taken += 1
        self.taken_tokens[step] = sum(_trainable_tokens(group) for group in batch)
        self.repeated_tokens[step] = sum(_trainable_tokens(group) for group in repeated)
        self.journal.write(
            *(
                ("UPDATE groups SET state = 'taken', step = ? WHERE group_id = ?", (step, g.group_id))
                for g in batch
            ),
            *repetition_rows(repeated, step),
        )
        self._drop_stale(list(self.live.values()), step + 1)
        self._changed()
        return [*batch, *repeated]

    def _drop_stale(self, groups: Sequence[Group], step: int) -> bool:
        """Drops those of `groups` that are too old for the batch of `step`; whether there was one."""
        if self.abort_staleness is None:
            return False
        oldest = step - self.abort_staleness
        stale = [group for group in groups if group.num_tokens() and group.oldest_version() < oldest]
        for group in stale:
            self._aborted_lengths += [t.num_response_tokens() for t in group.trajectories]
            self.drop(group, DropReason.STALE)
        return bool(stale)

    def pop_aborted_lengths(self) -> list[int]:
        """Response tokens of each trajectory that abort_staleness dropped since the last call."""
        lengths, self._aborted_lengths = self._aborted_lengths, []
        return lengths

    def commit(self, version: PolicyVersion, checkpoint_folder: str) -> int:
        """Batches of steps below `version` are trained for good; returns how many groups are newly so."""
        steps = [step for step in self.taken_tokens if step < version]
        tokens = sum(self.taken_tokens.pop(step) for step in steps)
        repeated = sum(self.repeated_tokens.pop(step, 0) for step in steps)
        self.journal.write(
            ("UPDATE groups SET state = 'trained' WHERE state = 'taken' AND step < ?", (version,)),
            (
                "INSERT OR REPLACE INTO commits VALUES (?, ?, ?)",
                (version, checkpoint_folder, self._wall_clock()),
            ),
            self._count(TRAINED, tokens),
            self._count(REPEATED, repeated),
        )
        self.committed_version = max(self.committed_version, version)
        return len(steps) * self.groups_per_batch

    def conservation(self) -> dict[str, int]:
        """Tokens: generated, trained, taken, queued, and dropped by reason; generated is the others' sum."""
        queued = sum(_trainable_tokens(group) for group in self.live.values())
        return conservation_of(self.counters, taken=sum(self.taken_tokens.values()), queued=queued)

    def _check_staleness(self, group: Group, step: int) -> None:
        if group.oldest_version() < step - self.max_staleness:
            raise StalenessBreach(
                f"Group {group.group_id} holds tokens of version {group.oldest_version()} at step {step}, "
                f"rollout.max_staleness is {self.max_staleness}."
            )

    def _count(self, counter: str, amount: int) -> Statement:
        self.counters[counter] = self.counters.get(counter, 0) + amount
        return bump(counter, amount)


def conservation_of(counters: Mapping[str, int], *, taken: int, queued: int) -> dict[str, int]:
    """The table of `ReplayQueue.conservation` from the journal's counters."""
    return {
        "generated": counters.get(GENERATED, 0),
        "trained": counters.get(TRAINED, 0),
        "taken": taken,
        "queued": queued,
        **{f"dropped: {reason}": counters.get(DROPPED + reason, 0) for reason in DropReason},
    }


def _trainable_tokens(group: Group) -> int:
    """Tokens of the trajectories that are still part of the group: faults left when it became ready."""
    if group.state is GroupState.OPEN:
        return group.num_tokens()
    return sum(t.num_response_tokens() for t in group.trajectories if t.trajectory_id in group.advantages)


def extend(trajectory: Trajectory, segment: Segment) -> None:
    """Appends `segment`, as part of the last one when both are of one version and one cache."""
    last = trajectory.segments[-1] if trajectory.segments else None
    if (
        last is not None
        and last.version == segment.version
        and last.is_continued_in_place == segment.is_continued_in_place
    ):
        last.tokens.extend(segment.tokens)
        last.behavior_logprobs.extend(segment.behavior_logprobs)
    else:
        trajectory.segments.append(segment)


def _admission(group: Group, seconds: float) -> list[Statement]:
    prompt = pack_tokens(group.task.prompt_tokens)
    return [
        (
            "INSERT INTO groups VALUES (?, ?, ?, 'open', ?, ?, NULL, NULL)",
            (
                group.group_id,
                storable(group.task.task_id),
                storable(group.task.prompt),
                group.admitted_version,
                seconds,
            ),
        ),
        *(
            (
                "INSERT INTO trajectories (trajectory_id, group_id, sample, prompt_tokens) "
                "VALUES (?, ?, ?, ?)",
                (trajectory.trajectory_id, group.group_id, sample, prompt),
            )
            for sample, trajectory in enumerate(group.trajectories)
        ),
    ]


def _segment_row(trajectory: Trajectory, segment: Segment) -> Statement:
    return (
        "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?)",
        (
            trajectory.trajectory_id,
            trajectory.num_response_tokens(),
            segment.version,
            int(segment.is_continued_in_place),
            pack_tokens(segment.tokens),
            pack_logprobs(segment.behavior_logprobs),
        ),
    )
