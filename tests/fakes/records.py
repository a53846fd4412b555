"""Small records for tests of the queue and of what stands on it."""

from pathlib import Path

from asyncrl.journal.packing import sequences_of
from asyncrl.journal.writer import Journal
from asyncrl.records import Batch, Finish, Score, Segment, Task, VerifierSpec
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.repetition import Repetition, make_repetition
from asyncrl.replay.settings import QueueSettings


def make_task(number: int = 1) -> Task:
    return Task(f"train:{number}", f"{number}+1=", (7, 8, 9), str(number + 1), VerifierSpec("math"))


def correctness_differs(group: Group) -> bool:
    """Whether a group has a gradient under an advantage that takes its mean as baseline."""
    greedy = {t.trajectory_id for t in group.trajectories if t.is_greedy}
    return len({s.correctness for name, s in group.scores.items() if name not in greedy} - {None}) > 1


def make_queue(
    folder: Path,
    *,
    batch: int = 2,
    samples: int = 2,
    staleness: int = 1,
    steps: int = 10,
    repeated: int = 0,
    max_uses: int = 2,
    order: str = "admission",
    abort_staleness: int | None = None,
    has_greedy: bool = False,
) -> ReplayQueue:
    settings = QueueSettings(
        groups_per_batch=batch,
        samples_per_group=samples,
        max_staleness=staleness,
        num_steps=steps,
        repeated_groups_per_batch=repeated,
        max_uses=max_uses,
        order=order,
        abort_staleness=abort_staleness,
        has_greedy=has_greedy,
    )
    journal = Journal(folder / "journal.sqlite")
    return ReplayQueue(
        journal,
        settings,
        has_signal=correctness_differs,
        repeats=make_repetition(settings),
        wall_clock=lambda: 0.0,
    )


def repetition_of(queue: ReplayQueue) -> Repetition:
    assert isinstance(queue.repeats, Repetition)
    return queue.repeats


def reopen(queue: ReplayQueue, folder: Path, **sizes: int) -> ReplayQueue:
    """What a controller that was killed and started again has; `sizes` as of `make_queue`."""
    queue.journal.close()
    same = {"batch": queue.settings.groups_per_batch, "staleness": queue.settings.max_staleness}
    again = make_queue(folder, **(same | sizes))
    again.restore(lambda task_id, prompt: make_task(int(task_id.partition(":")[2])))
    return again


def make_score(reward: float | None = 1.0) -> Score:
    outcome = "fault" if reward is None else ("correct" if reward else "wrong")
    return Score(outcome, reward, reward, "2", "", 0.001)


def generate(queue: ReplayQueue, group: Group, *, version: int, num_tokens: int = 3) -> None:
    """Every trajectory of `group` gets `num_tokens` tokens of `version` and ends."""
    for trajectory in group.trajectories:
        tokens = list(range(num_tokens))
        queue.append(group, trajectory, [Segment(version, tokens, [-0.5] * num_tokens)], Finish.STOP)


def finish(queue: ReplayQueue, group: Group, *, version: int, num_tokens: int = 3) -> None:
    """Generates, scores and readies `group`; rewards alternate between 1 and 0."""
    generate(queue, group, version=version, num_tokens=num_tokens)
    for index, trajectory in enumerate(group.trajectories):
        queue.score(group, trajectory, make_score(float(index % 2)), "text")
    queue.make_ready(group, {t.trajectory_id: (-1.0) ** i for i, t in enumerate(group.trajectories)})


def batch_of(groups: list[Group], version: int, temperature: float) -> Batch:
    """The batch of groups that the trainer of `version` just took."""
    return Batch(version, temperature, [sequence for group in groups for sequence in sequences_of(group)])
