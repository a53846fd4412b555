"""Dynamic sampling (DAPO, Yu et al. 2025, arxiv.org/abs/2503.14476): groups without a signal make room.

A dropped group gives its place back, so more are admitted until the batch is full. Its tokens are counted as
dropped: no_signal. Never holds a run up: after `max_in_a_row` such groups the next one is let through.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from asyncrl.algorithms.advantages import Advantage, GroupRewards, has_signal
from asyncrl.algorithms.branches import branch_advantages
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm
from asyncrl.replay.group import Group


def group_signal(advantage: Advantage, algorithm: Algorithm) -> Callable[[Group], bool]:
    """Whether a group has a gradient: whether the advantage of its raw correctness is not 0 throughout.

    Correctness in the place of the reward, because shaping breaks ties that mean nothing.
    """

    def decide(group: Group) -> bool:
        correctness, lengths = list[float](), list[int]()
        branches: dict[int, list[float]] = {}
        greedy: float | None = None
        for trajectory in group.trajectories:
            score = group.scores.get(trajectory.trajectory_id)
            if score is None or score.correctness is None:
                continue
            if trajectory.is_greedy:
                greedy = score.correctness
            else:
                own = [each.correctness for each in score.branches.values() if each.correctness is not None]
                if own:
                    branches[len(correctness)] = own
                correctness.append(score.correctness)
                lengths.append(trajectory.num_sampled_in_all())
        min_size = algorithm.min_group_size()
        if len(correctness) < min_size or (algorithm.needs_greedy() and greedy is None):
            return False
        with naming(group):
            known = GroupRewards(correctness, lengths, greedy, min_size=min_size)
            return has_signal(known, advantage, algorithm) or any(
                any(branch_advantages(known, place, own, advantage, algorithm))
                for place, own in branches.items()
            )

    return decide


@contextlib.contextmanager
def naming(group: Group) -> Iterator[None]:
    """Adds to an InputError which group it is about, and that nothing of the group is lost."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"{error} It was asked about group {group.group_id}, of the task {group.task.task_id}. Fix it "
            f"and run the same command again: the run resumes with every response that it has."
        ) from error


@dataclass(slots=True)
class SignalFilter:
    """Judges by raw correctness, never by the shaped reward."""

    is_on: bool
    max_in_a_row: int
    has_signal: Callable[[Group], bool]
    num_in_a_row: int = 0

    def lets_through(self, group: Group) -> bool:
        """Called once per group, when its verdicts are there."""
        if not self.is_on or self.has_signal(group) or self.num_in_a_row >= self.max_in_a_row:
            self.num_in_a_row = 0
            return True
        self.num_in_a_row += 1
        return False
