"""Metrics of turns, tools and pilots, counted per trajectory, step and source."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fakes.episodes import FakeEpisodes, conversations
from fakes.notebook import Notebook
from fakes.records import make_score, make_task
from fakes.turns import called, told

from asyncrl.observe.metrics.step_metrics import Reading, StepReport
from asyncrl.observe.metrics.turn_metrics import PilotMeter, source_metrics, turn_metrics
from asyncrl.records import Finish, Observed, Segment, Trajectory
from asyncrl.replay.group import Group
from asyncrl.rollout.filter import AdaptiveGroups
from asyncrl.tasks.pass_rates import PassRates
from asyncrl.turns.environment import End
from asyncrl.wire.messages import TakeRequest


def turn(*tokens: int) -> Segment:
    return Segment(0, list(tokens), [-1.0] * len(tokens))


def group_of(*trajectories: Trajectory) -> Group:
    group = Group(0, make_task(), 0, list(trajectories))
    group.scores.update({trajectory.trajectory_id: make_score() for trajectory in trajectories})
    return group


def played(name: str, *parts: Segment | Observed, finish: Finish = Finish.STOP) -> Trajectory:
    return Trajectory(name, (1,), list(parts), finish=finish)


def test_turns_calls_and_observations_are_counted_per_trajectory() -> None:
    five = called("calculator", {"expression": "2+3"}, "5", tokens=[40, 41, 42], seconds=0.1)
    failed = called("calculator", {"expression": "/"}, "no", tokens=[43], is_error=True, seconds=0.3)
    group = group_of(
        played("a", turn(1), five, turn(2), turn(3), failed, turn(4)),
        played("b", turn(1), told("again", tokens=[44], seconds=0.2), finish=Finish.LENGTH),
        played("c", turn(1)),
        played("d", turn(1), five, turn(2), failed, turn(3), finish=Finish.LENGTH),
    )
    baseline = played("e", *(part for _ in range(9) for part in (turn(1), five)))
    baseline.is_greedy = True
    group.trajectories.append(baseline)
    group.scores["e"] = make_score()
    group.trajectories.append(played("not graded", turn(1), five, turn(2)))
    assert turn_metrics([group], max_turns=3) == {
        # 3, 1, 1 and 3 turns: of the second one, no token followed the answer
        "turns_mean": pytest.approx(2.0),
        "turns_max": 3,
        "tool_use_share": pytest.approx(0.5),
        "calls_mean": pytest.approx(1.0),
        "call_error_share": pytest.approx(0.5),
        "observed_tokens_mean": pytest.approx(9 / 4),
        # of 0.1, 0.1, 0.2, 0.3 and 0.3
        "tool_seconds_p50": 0.2,
        "tool_seconds_p99": 0.3,
        # the last one alone was cut off in its third turn
        "max_turns_share": pytest.approx(0.25),
        "summaries_mean": 0.0,
        "summary_tokens_mean": None,
    }


def test_a_summary_is_counted_by_itself_and_not_as_a_turn() -> None:
    asks = told("again", tokens=[40], seconds=0.0)
    cut = Observed([], '{"messages": [], "kept_turns": 1}')
    trajectory = played("a", turn(1), asks, turn(2, 3), cut, finish=Finish.LENGTH)
    trajectory.branches = [Trajectory("a.1", (1, 2), [turn(4)])]
    found = turn_metrics([group_of(trajectory)], max_turns=3)
    assert (found["turns_mean"], found["summaries_mean"], found["summary_tokens_mean"]) == (2, 1, 2)
    assert found["max_turns_share"] == 0.0
    assert turn_metrics([group_of(trajectory)], max_turns=2)["max_turns_share"] == 1.0


def test_without_calls_there_is_no_share_of_errors_and_without_verdicts_no_mean() -> None:
    found = turn_metrics([group_of(played("a", turn(1)))], max_turns=3)
    assert (found["calls_mean"], found["call_error_share"], found["tool_seconds_p50"]) == (0.0, None, None)
    assert set(turn_metrics([], max_turns=3).values()) == {None}


def test_faults_of_environments_are_counted_per_step() -> None:
    notebook, playing = Notebook(), conversations(FakeEpisodes(lambda turn, text: End()))
    readings = [Reading(float(at), 0, 0, 0.0, 1, 0.0, 0.0, 0.0, 0.0, 0) for at in range(3)]
    meters, grader = SimpleNamespace(read=lambda: readings.pop(0)), SimpleNamespace()
    grader.num_retried, grader.pool_metrics = 0, dict
    report = StepReport(notebook, meters, grader, [], conversations=playing)  # type: ignore[arg-type]
    report.asked(TakeRequest(0))
    playing.tally.counts["environment_faults"] = 3
    report.asked(TakeRequest(1, step_metrics={}))
    playing.tally.counts["environment_faults"] = 4
    report.asked(TakeRequest(2, step_metrics={}))
    assert [row["environment_faults"] for row in notebook.steps] == [3, 1]


@pytest.mark.parametrize("has_sources", [True, False])
def test_pilots_that_stop_are_counted_once_per_step_and_by_source(has_sources: bool) -> None:
    meter = PilotMeter(has_sources=has_sources)
    rates = PassRates(1, half_life=9)
    adaptive = AdaptiveGroups(4, 1.0, rates, lambda task: 0, lambda: 0, meter.decided)
    for group in (
        group_of_source("easy:1", 1.0, 1.0),
        group_of_source("easy:2", 1.0, 1.0),
        group_of_source("hard:1", 0.0, 1.0),
        group_of_source("easy:3", 0.0, 1.0),
        # A group that is whole has no pilot to decide about.
        group_of_source("hard:2", 0.0, 0.0, 0.0, 0.0),
    ):
        adaptive.extends(group, teaches=False)
    found = dict(meter.read())
    assert (found["pilots_stopped"], found["pilots_stopped_share"]) == (2, 0.5)
    by_source = {"easy": pytest.approx(2 / 3), "hard": 0.0} if has_sources else None
    assert found.get("pilots_stopped_share_by_source") == by_source
    found = dict(meter.read())
    assert (found["pilots_stopped"], found["pilots_stopped_share"]) == (0, None)


def group_of_source(task_id: str, *rewards: float | None, callers: Sequence[int] = ()) -> Group:
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
        group_of_source("short:1", 1.0, 1.0, callers=[0]),
        group_of_source("long:1", 0.0, 1.0, callers=[1]),
        group_of_source("short:2", 1.0, 0.0),
        group_of_source("long:2", None, 1.0, callers=[0, 1]),
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
    found = source_metrics(
        [group_of_source("short:1", None), group_of_source("long:1", 1.0)], has_turns=False
    )
    assert found["correct_mean_by_source"] == {"long": 1.0}
