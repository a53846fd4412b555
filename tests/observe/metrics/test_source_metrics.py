"""Columns of a step for each source of data.train, against values counted by hand."""

from collections.abc import Sequence
from dataclasses import replace

from fakes.records import make_score, make_task
from fakes.turns import called

from asyncrl.observe.metrics.columns import values_of
from asyncrl.observe.metrics.turn_metrics import source_metrics
from asyncrl.records import Finish, Observed, Segment, Trajectory
from asyncrl.replay.group import Group
from asyncrl.run.metrics_file import flat


def group_of(task_id: str, *rewards: float | None, callers: Sequence[int] = ()) -> Group:
    """A group with a trajectory per reward; those at `callers` called a tool."""
    answer = called("calculator", {"expression": "2+3"}, "5", tokens=[40])
    group = Group(0, replace(make_task(), task_id=task_id), 0, [])
    for index, reward in enumerate(rewards):
        parts: list[Segment | Observed] = [Segment(0, [1], [-1.0])]
        parts += [answer, Segment(0, [2], [-1.0])] if index in callers else []
        trajectory = Trajectory(f"{task_id}-{index}", (1,), parts, finish=Finish.STOP)
        group.trajectories.append(trajectory)
        group.scores[trajectory.trajectory_id] = make_score(reward)
    return group


def test_correct_answers_and_use_of_tools_are_counted_per_source() -> None:
    groups = [
        group_of("short:1", 1.0, 1.0, callers=[0]),
        group_of("long:1", 0.0, 1.0, callers=[1]),
        group_of("short:2", 1.0, 0.0),
        group_of("long:2", None, 1.0, callers=[0, 1]),
    ]
    groups[0].trajectories.append(Trajectory("greedy", (1,), [], finish=Finish.STOP, is_greedy=True))
    groups[0].scores["greedy"] = make_score(0.0)
    # long: 1 of 2, and 1 of 1 beside a fault.
    assert source_metrics(groups, has_turns=True) == {
        "correct_mean_by_source": {"long": 0.75, "short": 0.75},
        "groups_share_by_source": {"long": 0.5, "short": 0.5},
        "tool_use_share_by_source": {"long": 0.75, "short": 0.25},
    }
    keys = {"correct_mean_by_source", "groups_share_by_source"}
    assert source_metrics(groups, has_turns=False).keys() == keys


def test_a_source_without_verdicts_has_no_value() -> None:
    found = source_metrics([group_of("short:1", None), group_of("long:1", 1.0)], has_turns=False)
    assert found["correct_mean_by_source"] == {"long": 1.0}


def test_trackers_get_a_value_per_source_under_names_that_they_take() -> None:
    step = flat(
        {
            "kind": "step",
            "correct_mean_by_source": {"gsm8k-train": 0.5},
            "tool_use_share_by_source": {"a b": 1.0},
        }
    )
    assert values_of(step) == {
        "reward/correct_mean_by_source/gsm8k-train": 0.5,
        "turns/tool_use_share_by_source/a-b": 1.0,
    }
    evaluation = {"kind": "eval", "greedy_accuracy_by_source_a b": 0.5}
    assert values_of(evaluation) == {"eval/greedy_accuracy_by_source_a-b": 0.5}
