"""Whether rollout.max_staleness starves the servers, and what to set instead."""

from dataclasses import replace

from asyncrl.planning.lengths import Lengths, log_normal_lengths
from asyncrl.planning.settings import Costs, PlannedRun
from asyncrl.planning.tail import tail_lines
from asyncrl.replay.settings import QueueSettings

COSTS = Costs(0.01, 0.0001, 0.2, 0.0, 0.1, 0.05)
RARE_GIANTS = Lengths([[100] * 8] * 9 + [[100] * 7 + [3000]], 10.0)


def make_run(staleness: int) -> PlannedRun:
    queue = QueueSettings(groups_per_batch=8, samples_per_group=8, max_staleness=staleness, num_steps=60)
    return PlannedRun(queue, COSTS, num_servers=1, max_running_requests=512, decode_slots=512.0)


def test_giants_that_outlive_the_bound_are_warned_of_with_a_bound_that_helps() -> None:
    line, warning = tail_lines(make_run(2), RARE_GIANTS)
    words, _, bound = line.partition("; ")
    assert float(words.split(", ")[1].split()[0]) > 3.0 and bound == "rollout.max_staleness is 2"
    assert warning.startswith(
        "WARNING: rollout.max_staleness 2 starves the servers: the longest response takes"
    )
    assert "rollout.mask_staleness 2 then" in warning
    better = int(warning.partition("With rollout.max_staleness ")[2].split()[0])
    assert better > 2
    # What it suggests is not warned of again.
    assert len(tail_lines(make_run(better), RARE_GIANTS)) == 1


def test_responses_that_end_in_time_are_not_warned_of() -> None:
    alike = log_normal_lengths(100.0, 0.1, limit=200, samples_per_group=8, prompt_tokens=10.0)
    # Two batches fit on the server, and both end within two steps.
    (line,) = tail_lines(replace(make_run(4), max_running_requests=128), alike)
    assert "rollout.max_staleness is 4" in line


def test_synchronous_drained_and_oversampled_runs_want_their_waits() -> None:
    for run in (
        make_run(0),
        replace(make_run(2), interrupt="drain"),
        replace(make_run(2), oversampling=1.5),
    ):
        assert len(tail_lines(run, RARE_GIANTS)) == 1
