"""From the journal back to memory: what a restarted controller resumes, what a restarted trainer repeats."""

from collections.abc import Callable
from pathlib import Path

from asyncrl.errors import QueueError
from asyncrl.journal.compaction import compacted_before
from asyncrl.journal.writer import Journal, JournalReader, unpack_logprobs, unpack_tokens
from asyncrl.records import Batch, Finish, Score, Segment, Sequence, Task, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.replay_queue import ReplayQueue, conservation_of, extend

TaskOf = Callable[[str, str], Task]
"""Finds the task of a task id and a prompt; raises InputError when the data no longer holds it."""


def restore(queue: ReplayQueue, task_of: TaskOf) -> None:
    """Fills a new queue with what its journal holds: open and ready groups, counts, takes and commits."""
    journal = queue.journal
    ((num_admitted, num_dropped, num_steps_taken),) = journal.read(
        "SELECT count(*), coalesce(sum(state = 'dropped'), 0), coalesce(max(step) + 1, 0) FROM groups"
    )
    queue.num_admitted, queue.num_dropped = num_admitted, num_dropped
    queue.num_steps_taken = num_steps_taken
    queue.counters.update(journal.read("SELECT name, value FROM counters"))
    ((highest,),) = journal.read("SELECT coalesce(max(version), 0) FROM segments")
    queue.highest_version = queue.catch_up_version = max(highest, num_steps_taken)
    live = _restore_groups(journal, task_of, queue.samples_per_group, "state IN ('open', 'ready')")
    queue.live.update((group.group_id, group) for group in live)
    queue.taken_tokens.update(
        journal.read(
            "SELECT g.step, sum(length(s.tokens) / 4) FROM groups g JOIN trajectories t USING (group_id) "
            "JOIN segments s USING (trajectory_id) WHERE g.state = 'taken' AND t.advantage IS NOT NULL "
            "GROUP BY g.step"
        )
    )
    _restore_repetition(queue, task_of)


def restored_tasks(
    journal: JournalReader, *, max_staleness: int, has_repetition: bool
) -> list[tuple[str, str]]:
    """(task id, prompt) of each group that `restore` would ask `task_of` for."""
    where = "state IN ('open', 'ready')"
    if has_repetition:
        where += f" OR step >= (SELECT max(step) + 1 FROM groups) - {max_staleness}"
    return [
        (task_id, prompt)
        for task_id, prompt in journal.read(
            f"SELECT task_id, prompt FROM groups WHERE {where} ORDER BY group_id"
        )
    ]


def _restore_repetition(queue: ReplayQueue, task_of: TaskOf) -> None:
    """Groups that may be taken again with the uses they had, and what no checkpoint covers."""
    journal = queue.journal
    queue.repeated_tokens.update(
        journal.read(
            "SELECT r.step, sum(length(s.tokens) / 4) FROM repetitions r JOIN trajectories t "
            "USING (group_id) JOIN segments s USING (trajectory_id) WHERE t.advantage IS NOT NULL AND "
            "EXISTS (SELECT 1 FROM groups g WHERE g.step = r.step AND g.state = 'taken') GROUP BY r.step"
        )
    )
    if not queue.repetition.groups_per_batch:
        return
    first = queue.num_steps_taken - queue.repetition.max_staleness
    groups = _restore_groups(journal, task_of, queue.samples_per_group, f"step >= {first}")
    repetitions = dict(journal.read("SELECT group_id, count(*) FROM repetitions GROUP BY group_id"))
    for group in groups:
        group.num_uses = 1 + repetitions.get(group.group_id, 0)
    # Tokens may be compacted where an earlier start of the run repeated nothing.
    queue.repetition.add(group for group in groups if group.num_tokens())


def _restore_groups(journal: Journal, task_of: TaskOf, samples_per_group: int, where: str) -> list[Group]:
    """The groups that an SQL condition chooses, whole, in admission order."""
    groups = []
    for group_id, task_id, prompt, admitted_version, state, step in journal.read(
        "SELECT group_id, task_id, prompt, admitted_version, state, step FROM groups "
        f"WHERE {where} ORDER BY group_id"
    ):
        group = Group(group_id, task_of(task_id, prompt), admitted_version, [], GroupState(state), step=step)
        _restore_trajectories(journal, group, samples_per_group)
        groups.append(group)
    return groups


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


def read_counter(path: Path, name: str) -> int:
    """A token account of a journal by its name in queue.py; 0 when nothing was counted."""
    found = JournalReader(path).read("SELECT value FROM counters WHERE name = ?", (name,))
    return int(found[0][0]) if found else 0


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
    repeated = "UNION ALL SELECT group_id, 1 FROM repetitions WHERE step = :step "
    rows = journal.read(
        "SELECT t.trajectory_id, prompt_tokens, reward, advantage, version, is_continued, tokens, logprobs "
        "FROM (SELECT group_id, 0 AS is_repeated FROM groups WHERE step = :step "
        f"{repeated if journal.has_table('repetitions') else ''}) JOIN trajectories t USING (group_id) "
        "LEFT JOIN segments s ON s.trajectory_id = t.trajectory_id "
        "WHERE advantage IS NOT NULL ORDER BY is_repeated, group_id, sample, position",
        {"step": step},
    )
    if not all(prompt for _, prompt, *_ in rows):
        raise QueueError(f"{journal.path} no longer holds all tokens of step {step + 1}: they are compacted.")
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
