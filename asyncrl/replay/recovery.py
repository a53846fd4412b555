"""From the journal back to memory: what a restarted controller resumes, what a restarted trainer repeats."""

from collections.abc import Callable
from pathlib import Path

from asyncrl.errors import QueueError
from asyncrl.replay.compaction import compacted_before
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.journal import Journal, JournalReader, unpack_logprobs, unpack_tokens
from asyncrl.replay.queue import ReplayQueue, conservation_of, extend
from asyncrl.types import Batch, Finish, Score, Segment, Sequence, Task, Trajectory


def restore(queue: ReplayQueue, task_of: Callable[[str], Task]) -> None:
    """Fills a new queue with what its journal holds: open and ready groups, counts, takes and commits.

    `task_of` finds the task of a task id; it raises InputError when the data no longer holds it.
    """
    journal = queue.journal
    ((num_admitted, num_dropped, num_steps_taken),) = journal.read(
        "SELECT count(*), coalesce(sum(state = 'dropped'), 0), coalesce(max(step) + 1, 0) FROM groups"
    )
    queue.num_admitted, queue.num_dropped = num_admitted, num_dropped
    queue.num_steps_taken = num_steps_taken
    queue.counters.update(journal.read("SELECT name, value FROM counters"))
    ((highest,),) = journal.read("SELECT coalesce(max(version), 0) FROM segments")
    queue.highest_version = queue.catch_up_version = max(highest, num_steps_taken)
    for row in journal.read(
        "SELECT group_id, task_id, admitted_version, state FROM groups "
        "WHERE state IN ('open', 'ready') ORDER BY group_id"
    ):
        group_id, task_id, admitted_version, state = row
        group = Group(group_id, task_of(task_id), admitted_version, [], GroupState(state))
        _restore_trajectories(journal, group, queue.samples_per_group)
        queue.live[group_id] = group
    queue.taken_tokens.update(
        journal.read(
            "SELECT g.step, sum(length(s.tokens) / 4) FROM groups g JOIN trajectories t USING (group_id) "
            "JOIN segments s USING (trajectory_id) WHERE g.state = 'taken' AND t.advantage IS NOT NULL "
            "GROUP BY g.step"
        )
    )


def _restore_trajectories(journal: Journal, group: Group, samples_per_group: int) -> None:
    rows = journal.read(
        "SELECT trajectory_id, sample, prompt_tokens, finish, outcome, correctness, reward, advantage, "
        "extracted, detail, verify_seconds FROM trajectories WHERE group_id = ? ORDER BY sample",
        (group.group_id,),
    )
    for name, sample, prompt, finish, outcome, *scored in rows:
        correctness, reward, advantage, extracted, detail, seconds = scored
        trajectory = Trajectory(
            name,
            tuple(unpack_tokens(prompt)),
            finish=Finish(finish) if finish else None,
            is_greedy=sample == samples_per_group,
        )
        for segment in _segments(journal, name):
            extend(trajectory, segment)
        group.trajectories.append(trajectory)
        if outcome is not None:
            group.scores[name] = Score(outcome, correctness, reward, extracted, detail, seconds)
        if advantage is not None:
            group.advantages[name] = advantage


def read_conservation(path: Path) -> dict[str, int]:
    """`ReplayQueue.conservation` of a journal, as far as it is committed."""
    journal = JournalReader(path)
    counters: dict[str, int] = dict(journal.read("SELECT name, value FROM counters"))
    held = dict(
        journal.read(
            "SELECT CASE state WHEN 'taken' THEN 'taken' ELSE 'queued' END, sum(length(s.tokens) / 4) "
            "FROM groups g JOIN trajectories t USING (group_id) JOIN segments s USING (trajectory_id) "
            "WHERE state IN ('open', 'ready', 'taken') AND (state = 'open' OR advantage IS NOT NULL) "
            "GROUP BY 1"
        )
    )
    return conservation_of(counters, taken=held.get("taken", 0), queued=held.get("queued", 0))


def load_batch(journal: JournalReader, step: int, temperature: float) -> Batch:
    """The batch that was taken at `step` (from 0), in the order of its first take.

    Raises QueueError when its tokens were compacted.
    """
    if step < (boundary := compacted_before(journal)):
        raise QueueError(
            f"The tokens of steps 1 to {boundary} are compacted in {journal.path}: step {step + 1} cannot be "
            f"trained again. Put a checkpoint of version {boundary} or later back, or use another "
            f"run_folder; replay.keep_steps says how long tokens are kept."
        )
    rows = journal.read(
        "SELECT t.trajectory_id, prompt_tokens, reward, advantage, version, is_continued, "
        "tokens, logprobs FROM "
        "trajectories t "
        "JOIN groups USING (group_id) LEFT JOIN segments s ON s.trajectory_id = t.trajectory_id "
        "WHERE step = ? AND advantage IS NOT NULL ORDER BY group_id, sample, position",
        (step,),
    )
    found: dict[str, tuple[Trajectory, float, float]] = {}
    for name, prompt, reward, advantage, version, is_continued, tokens, logprobs in rows:
        trajectory, _, _ = found.setdefault(
            name, (Trajectory(name, tuple(unpack_tokens(prompt))), reward, advantage)
        )
        if version is not None:
            numbers = unpack_tokens(tokens), unpack_logprobs(logprobs)
            trajectory.segments.append(Segment(version, *numbers, bool(is_continued)))
    return Batch(step, temperature, [sequence(*scored) for scored in found.values()])


def batch_of(groups: list[Group], step: int, temperature: float) -> Batch:
    """The batch of groups that were just taken."""
    sequences = []
    for group in groups:
        for trajectory in group.trajectories:
            advantage = group.advantages.get(trajectory.trajectory_id)
            if advantage is not None:
                reward = group.scores[trajectory.trajectory_id].reward
                assert reward is not None
                sequences.append(sequence(trajectory, reward, advantage))
    return Batch(step, temperature, sequences)


def sequence(trajectory: Trajectory, reward: float, advantage: float) -> Sequence:
    """A scored trajectory as the trainer sees it."""
    segments = trajectory.segments
    return Sequence(
        sequence_id=trajectory.trajectory_id,
        prompt_tokens=list(trajectory.prompt_tokens),
        response_tokens=trajectory.response_tokens(),
        behavior_logprobs=[logprob for segment in segments for logprob in segment.behavior_logprobs],
        token_versions=[segment.version for segment in segments for _ in segment.tokens],
        are_continued=[segment.is_continued_in_place for segment in segments for _ in segment.tokens],
        advantage=advantage,
        reward=reward,
    )


def _segments(journal: Journal, trajectory_id: str) -> list[Segment]:
    return [
        Segment(version, unpack_tokens(tokens), unpack_logprobs(logprobs), bool(is_continued))
        for version, is_continued, tokens, logprobs in journal.read(
            "SELECT version, is_continued, tokens, logprobs FROM segments WHERE trajectory_id = ? "
            "ORDER BY position",
            (trajectory_id,),
        )
    ]
