"""A warm-up of the critic on an earlier run's responses: the queue, journal and wires of every batch."""

from pathlib import Path

import pytest
from fakes.controllers import controller_on, make_recipe
from fakes.engine import FakeEngine
from fakes.records import make_score
from fakes.trainer import FakeTrainer

from asyncrl.errors import InputError
from asyncrl.journal.recorded_groups import RecordedGroup, RecordedResponse
from asyncrl.records import Batch, Finish, Task, VerifierSpec
from asyncrl.tasks.order import TaskOrder
from asyncrl.tasks.recorded import WarmedOrder

CRITIC = {"warmup_steps": 2, "warmup_run": "earlier", "learning_rate": 1e-4}
RECIPE = make_recipe(
    algorithm={"advantage": "gae"}, critic=CRITIC, evaluation={"every_steps": 0}, data={"heldout": None}
)


def recorded_tasks(count: int = 4) -> list[Task]:
    """Groups 0 to 3 of the earlier run, whose responses are their number, right and wrong."""
    tasks = []
    for n in range(count):
        responses = [
            RecordedResponse([n, 9], [-0.5, -0.25], Finish.STOP, make_score(reward), str(n))
            for reward in (1.0, 0.0)
        ]
        group = RecordedGroup(n, f"{n}", (5, 6), responses)
        tasks.append(Task(f"critic.warmup_run:{n}", f"{n}", (5, 6), group, VerifierSpec("recorded")))
    return tasks


def told(batch: Batch) -> list[tuple[list[int], float, float]]:
    return [(list(s.response_tokens), s.reward, s.advantage) for s in batch.sequences]


async def test_the_first_batches_are_the_recorded_groups_and_the_policy_learns_none_of_them(
    tmp_path: Path,
) -> None:
    async with FakeEngine() as engine:
        async with controller_on(tmp_path, RECIPE, [engine], recorded=recorded_tasks()) as (controller, _):
            killed = FakeTrainer(controller.queue_url, tmp_path, commit_every=1)

            async def stop_in_the_warm_up() -> None:
                await killed.run(num_steps=1)
                controller.stop()

            await controller.run(stop_in_the_warm_up)
        # Groups that the first process left ready come back with their responses.
        async with controller_on(tmp_path, RECIPE, [engine], recorded=recorded_tasks()) as (controller, _):
            again = FakeTrainer(controller.queue_url, tmp_path, version=killed.version)
            await controller.run(again.run)
            table = controller.queue.conservation()
        # What follows the warm-up needs the earlier run no more.
        batches = [*killed.batches, *again.batches]
    assert [batch.taken_version for batch in batches] == [0, 1, 2, 3]
    assert [told(batch) for batch in batches[:2]] == [
        [([n, 9], reward, reward) for n in pair for reward in (1.0, 0.0)] for pair in ((0, 1), (2, 3))
    ]
    # The others are generated, each token by a version that the warm-up left behind.
    for batch in batches[2:]:
        assert all(s.response_tokens[0] >= 10 for s in batch.sequences)
        assert all(
            batch.taken_version - version <= 1 for s in batch.sequences for version in s.token_versions
        )
    assert table["generated"] == table["trained"]


def test_the_order_after_a_warm_up_is_that_without_one() -> None:
    rows = [Task(f"train:{n}", f"{n}", (5,), "7", VerifierSpec("exact")) for n in range(5)]
    plain = TaskOrder(rows, seed=1, is_shuffled=True)
    warmed = WarmedOrder(recorded_tasks(2), 2, rows, seed=1, is_shuffled=True)
    assert [warmed.next(n, 0).task_id for n in range(2)] == ["critic.warmup_run:0", "critic.warmup_run:1"]
    assert [warmed.next(n + 2, 0) for n in range(5)] == [plain.next(n, 0) for n in range(5)]
    assert warmed.find("critic.warmup_run:1", "1").reference.group_id == 1
    with pytest.raises(InputError, match=r"critic\.warmup_run has changed since the run began: its journal"):
        warmed.find("critic.warmup_run:1", "2")
