"""Columns of a step for adaptive groups: the pilots that stopped, since the step before."""

from dataclasses import replace

import pytest
from fakes.records import make_score, make_task

from asyncrl.observe.metrics.columns import values_of
from asyncrl.observe.metrics.turn_metrics import PilotMeter
from asyncrl.records import Finish, Segment, Trajectory
from asyncrl.replay.group import Group
from asyncrl.rollout.filter import AdaptiveGroups
from asyncrl.run.metrics_file import flat
from asyncrl.tasks.pass_rates import PassRates


def pilot_of(task_id: str, *rewards: float) -> Group:
    group = Group(0, replace(make_task(), task_id=task_id), 0, [])
    for index, reward in enumerate(rewards):
        trajectory = Trajectory(f"{task_id}-{index}", (1,), [Segment(0, [1], [-1.0])], finish=Finish.STOP)
        group.trajectories.append(trajectory)
        group.scores[trajectory.trajectory_id] = make_score(reward)
    return group


@pytest.mark.parametrize("has_sources", [True, False])
def test_pilots_that_stop_are_counted_once_per_step_and_by_source(has_sources: bool) -> None:
    meter = PilotMeter(has_sources=has_sources)
    adaptive = AdaptiveGroups(4, 1.0, PassRates(1, half_life=9), lambda task: 0, lambda: 0, meter.decided)
    for group in (
        pilot_of("easy:1", 1.0, 1.0),
        pilot_of("easy:2", 1.0, 1.0),
        pilot_of("hard:1", 0.0, 1.0),
        pilot_of("easy:3", 0.0, 1.0),
        # A group that is whole has no pilot to decide about.
        pilot_of("hard:2", 0.0, 0.0, 0.0, 0.0),
    ):
        adaptive.extends(group, teaches=False)
    found = dict(meter.read())
    assert (found["pilots_stopped"], found["pilots_stopped_share"]) == (2, 0.5)
    by_source = {"easy": pytest.approx(2 / 3), "hard": 0.0} if has_sources else None
    assert found.get("pilots_stopped_share_by_source") == by_source
    found = dict(meter.read())
    assert (found["pilots_stopped"], found["pilots_stopped_share"]) == (0, None)


def test_trackers_get_them_among_those_of_rollouts() -> None:
    columns = {
        "pilots_stopped": 2,
        "pilots_stopped_share": 0.5,
        "pilots_stopped_share_by_source": {"a b": 0.25},
    }
    assert values_of(flat({"kind": "step", **columns})) == {
        "rollout/pilots_stopped": 2.0,
        "rollout/pilots_stopped_share": 0.5,
        "rollout/pilots_stopped_share_by_source/a-b": 0.25,
    }
