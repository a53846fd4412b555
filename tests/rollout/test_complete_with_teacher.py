"""Groups that a teacher scores while they wait for their verdicts: on a real queue and its journal."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

from fakes.completions import completion_on
from fakes.records import batch_of, make_queue, make_task, reopen
from rollout.test_complete import Grades, _nothing, generated

from asyncrl.journal.packing import pack_logprobs, unpack_logprobs
from asyncrl.journal.queue_state import load_batch
from asyncrl.model.column_bytes import TEACHER_LOGPROBS, TEACHER_TOP, pack_top, top_size
from asyncrl.recipe import Algorithm
from asyncrl.records import Columns, Finish, Segment, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.teacher import TeacherScoring


class Teaches:
    """Scores each token by half of its place, with one likeliest token; refuses the trajectories
    `refused`."""

    def __init__(self, *refused: str) -> None:
        self.asked: list[str] = []
        self._refused = refused

    async def scores(self, trajectory: Trajectory) -> dict[str, Columns] | None:
        self.asked.append(trajectory.trajectory_id)
        if trajectory.trajectory_id in self._refused:
            return None
        size = trajectory.num_sampled_tokens()
        top = pack_top([[(-0.25, 3)]] * size, ())
        logprobs = pack_logprobs([-0.5 * i for i in range(size)])
        return {trajectory.trajectory_id: {TEACHER_LOGPROBS: logprobs, TEACHER_TOP: top}}


def complete(
    queue: ReplayQueue,
    group: Group,
    teacher: Teaches,
    *rewards: float | None,
    has_verdicts: bool = True,
    drops: bool = False,
) -> None:
    generator = SimpleNamespace(limit_sampled_tokens=lambda trajectory: 10, run=lambda group: _nothing())
    algorithm = Algorithm(advantage="dr_grpo")
    completion = completion_on(
        *(queue, generator, Grades(*rewards), SimpleNamespace(decode=lambda tokens: "text"), algorithm),
        # As the controller makes it with a teacher: every group has a signal.
        lambda group: True,
        drops=drops,
        most_dropped=100,
        scores=TeacherScoring(teacher, queue),  # type: ignore[arg-type]
        has_verdicts=has_verdicts,
    )
    asyncio.run(completion.run(group))


def test_a_group_of_equal_rewards_is_ready_with_the_teachers_log_probs_and_they_are_journaled(
    tmp_path: Path,
) -> None:
    queue, teacher = make_queue(tmp_path, batch=1), Teaches()
    group = generated(queue, 3, 2)
    complete(queue, group, teacher, 1.0, 1.0, drops=True)
    assert group.state is GroupState.READY and list(group.advantages.values()) == [0.0, 0.0]
    taken = queue.take(0)
    assert taken is not None
    batch = batch_of(taken, 0, 1.0)
    told = [unpack_logprobs(one.columns[TEACHER_LOGPROBS]) for one in batch.sequences]
    assert told == [[0.0, -0.5, -1.0], [0.0, -0.5]]
    assert [top_size(one.columns[TEACHER_TOP], one.num_sampled()) for one in batch.sequences] == [1, 1]
    queue.journal.barrier_blocking()
    assert load_batch(queue.journal, 0, 1.0) == batch


def test_a_restarted_run_asks_the_teacher_for_nothing_that_the_journal_has(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1)
    group = generated(queue, 3, 2)
    first, second = (each.trajectory_id for each in group.trajectories)
    scores = {TEACHER_LOGPROBS: pack_logprobs([-0.5, -0.25, -0.125]), TEACHER_TOP: b"as told"}
    queue.add_columns(group, {first: scores})
    queue = reopen(queue, tmp_path)
    (group,), teacher = queue.live.values(), Teaches()
    complete(queue, group, teacher, 1.0, 0.0)
    assert teacher.asked == [second]
    assert group.columns[first] == scores
    queue = reopen(queue, tmp_path)
    (group,) = queue.live.values()
    assert group.state is GroupState.READY
    assert group.columns.keys() == {first, second}


def test_a_response_that_the_teacher_refuses_leaves_its_group_and_is_no_wrong_answer(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=3)
    group = generated(queue, 3, 2, 4)
    refused = group.trajectories[1].trajectory_id
    complete(queue, group, Teaches(refused), 1.0, 0.0, 0.0)
    assert group.state is GroupState.READY and refused not in group.advantages
    # The baseline is that of the two others, without the 0 of the one that left.
    assert list(group.advantages.values()) == [0.5, -0.5]
    assert queue.conservation()["dropped: fault"] == 2


def test_without_verdicts_no_verifier_is_asked_and_each_response_has_the_teachers_advantage_alone(
    tmp_path: Path,
) -> None:
    queue = make_queue(tmp_path, batch=1, samples=1)
    group = generated(queue, 3)
    complete(queue, group, Teaches(), has_verdicts=False)
    (score,) = group.scores.values()
    assert (score.outcome, score.correctness) == ("unjudged", None)
    taken = queue.take(0)
    assert taken is not None
    (one,) = batch_of(taken, 0, 1.0).sequences
    assert one.advantage == 0.0 and len(unpack_logprobs(one.columns[TEACHER_LOGPROBS])) == 3


def test_a_response_without_tokens_needs_no_scores(tmp_path: Path) -> None:
    queue, teacher = make_queue(tmp_path, batch=1, samples=1), Teaches()
    queue.announce(0)
    group = queue.admit(make_task())
    queue.append(group, group.trajectories[0], [Segment(0, [], [])], Finish.STOP)
    complete(queue, group, teacher, has_verdicts=False)
    assert group.state is GroupState.READY and not teacher.asked
