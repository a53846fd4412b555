"""Whether rollout.max_staleness starves the servers, and what to set instead."""

from dataclasses import replace

from asyncrl.planning.lengths import LogNormalLengths, MeasuredLengths
from asyncrl.planning.settings import Costs, PlannedRun
from asyncrl.planning.tail import find_tail, tail_line, tail_warning
from asyncrl.replay.settings import QueueSettings

COSTS = Costs(0.01, 0.0001, 0.2, 0.0, 0.1, 0.05)
RARE_GIANTS = MeasuredLengths({0: [[100] * 8] * 9 + [[100] * 7 + [3000]]}, 10.0)


def make_run(staleness: int) -> PlannedRun:
    queue = QueueSettings(groups_per_batch=8, samples_per_group=8, max_staleness=staleness, num_steps=60)
    return PlannedRun(queue, COSTS, num_servers=1, max_running_requests=512, decode_slots=512.0)


def test_giants_that_outlive_the_bound_are_warned_of_with_a_bound_that_helps() -> None:
    run = make_run(2)
    tail = find_tail(run, RARE_GIANTS)
    assert tail.steps() > 3.0
    assert tail.better is not None and tail.better > 2
    warning = tail_warning(tail, run)
    assert warning is not None
    assert warning.startswith("rollout.max_staleness 2 starves the servers: the longest response takes")
    assert f"With rollout.max_staleness {tail.better} a step would take" in warning
    assert "rollout.mask_staleness 2 then" in warning
    # What it suggests is not warned of again.
    better = make_run(tail.better)
    assert tail_warning(find_tail(better, RARE_GIANTS), better) is None


def test_responses_that_end_in_time_are_not_warned_of() -> None:
    alike = LogNormalLengths(100.0, 0.1, 200, 10.0)
    # Two batches fit on the server, and both end within two steps.
    run = replace(make_run(4), max_running_requests=128)
    tail = find_tail(run, alike)
    assert tail_warning(tail, run) is None
    assert "rollout.max_staleness is 4" in tail_line(tail, run)


def test_synchronous_drained_and_oversampled_runs_want_their_waits() -> None:
    for run in (
        make_run(0),
        replace(make_run(2), interrupt="drain"),
        replace(make_run(2), oversampling=1.5),
    ):
        assert find_tail(run, RARE_GIANTS).better is None
