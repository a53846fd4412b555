"""The simulated queue answers as the real one does, whatever happens in whatever order."""

import random
from pathlib import Path

import pytest
from fakes.records import correctness_differs, make_score, make_task

from asyncrl.journal.writer import Journal
from asyncrl.planning.planned_queue import PlannedGroup, PlannedQueue
from asyncrl.records import DropReason, Finish, Segment
from asyncrl.replay.group import GroupState
from asyncrl.replay.policy import ORDERS
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings
from asyncrl.rollout.oversampling import Oversampling

SAMPLES = 2
NUM_STEPS = 12


class Both:
    """One schedule for both queues; every answer is compared."""

    def __init__(self, folder: Path, settings: QueueSettings, oversampling: float | None) -> None:
        self.real = ReplayQueue(
            Journal(folder / "journal.sqlite"),
            settings,
            has_signal=correctness_differs,
            wall_clock=lambda: 0.0,
        )
        self.rounds = Oversampling(self.real, oversampling)
        self.planned = PlannedQueue(settings, oversampling=oversampling)
        self.version = 0
        """Of the servers: what new tokens are of."""

    def announce(self, version: int) -> None:
        self.real.announce(version)
        self.planned.announce(version)

    def admit(self) -> bool:
        may = self.real.can_admit() and self.rounds.may_admit(0)
        assert self.planned.can_admit() == may
        assert self.planned.is_over() == self.rounds.is_over()
        if may:
            assert self.real.admit(make_task()).group_id == self.planned.admit().group_id
        return may

    def generate(self, group_id: int, chance: random.Random) -> None:
        """Some tokens for each of its trajectories; it may end with them."""
        real, planned = self.real.live[group_id], self.planned.live[group_id]
        is_last = chance.random() < 0.5
        for trajectory in real.trajectories:
            count = chance.randint(1, 4)
            finish = Finish.STOP if is_last else None
            self.real.append(real, trajectory, [Segment(self.version, [5] * count, [-0.5] * count)], finish)
            planned.tokens[self.version] = planned.tokens.get(self.version, 0.0) + count
        planned.oldest = self.version if planned.oldest is None else planned.oldest
        if not is_last:
            return
        if chance.random() < 0.1:
            self.real.drop(real, DropReason.NO_SIGNAL)
            self.planned.drop(planned)
            return
        planned.has_signal = chance.random() < 0.5
        for index, trajectory in enumerate(real.trajectories):
            reward = float(index % 2) if planned.has_signal else 1.0
            self.real.score(real, trajectory, make_score(reward), "text")
        self.real.make_ready(real, {t.trajectory_id: 0.5 for t in real.trajectories})
        self.planned.make_ready(planned)

    def take(self) -> bool:
        has_batch = self.planned.has_batch()
        planned, _ = self.planned.take() if has_batch else (None, [])
        real = self.real.take(self.real.num_steps_taken)
        assert _ids(planned) == (None if real is None else [group.group_id for group in real])
        return real is not None

    def compare(self) -> None:
        assert list(self.planned.live) == list(self.real.live)
        assert self.planned.num_dropped == self.real.num_dropped
        assert self.planned.num_steps_taken == self.real.num_steps_taken


def _ids(groups: list[PlannedGroup] | None) -> list[int] | None:
    return None if groups is None else [group.group_id for group in groups]


@pytest.mark.parametrize("order", [order for order in ORDERS if order != "signal"])
@pytest.mark.parametrize(
    ("staleness", "oversampling", "abort_staleness"),
    [(0, None, None), (1, None, None), (3, None, None), (3, 1.5, None), (3, None, 1), (2, 2.0, 1)],
)
def test_both_queues_admit_take_and_drop_the_same(
    tmp_path: Path, order: str, staleness: int, oversampling: float | None, abort_staleness: int | None
) -> None:
    chance = random.Random(f"{order} {staleness} {oversampling} {abort_staleness}")
    for number in range(6):
        settings = QueueSettings(
            groups_per_batch=chance.randint(1, 4),
            samples_per_group=SAMPLES,
            max_staleness=staleness,
            num_steps=NUM_STEPS,
            order=order,
            abort_staleness=abort_staleness,
        )
        folder = tmp_path / str(number)
        folder.mkdir()
        both = Both(folder, settings, oversampling)
        both.announce(0)
        is_trained = True
        for _ in range(5000):
            if both.real.num_steps_taken == NUM_STEPS:
                break
            match chance.choice(("admit", "generate", "generate", "take", "train")):
                case "admit":
                    both.admit()
                case "generate":
                    still_open = [g for g in both.real.live.values() if g.state is GroupState.OPEN]
                    if still_open:
                        both.generate(chance.choice(still_open).group_id, chance)
                case "take" if is_trained:
                    is_trained = not both.take()
                case "train" if not is_trained:
                    # Servers have new weights before the trainer's next take announces them.
                    both.version += 1
                    both.announce(both.version)
                    is_trained = True
            both.compare()
        assert both.real.num_steps_taken == NUM_STEPS, "the schedule came to no end"
        both.real.journal.close()


def test_signal_is_liked_as_the_real_queue_likes_it() -> None:
    # The real order compares variances, of which a simulation knows whether they are 0.
    settings = QueueSettings(
        groups_per_batch=1, samples_per_group=1, max_staleness=2, num_steps=3, order="signal"
    )
    queue = PlannedQueue(settings)
    queue.announce(0)
    first, second = queue.admit(), queue.admit()
    first.has_signal = False
    queue.make_ready(first)
    queue.make_ready(second)
    assert queue.take() == ([second], [])
