"""Tokens that pilots and an oracle would have saved: read from a journal, replayed by the run's own code."""

from pathlib import Path

import numpy as np
import pytest
from fakes.records import correctness_differs, make_score, make_task

from asyncrl.journal.writer import Journal
from asyncrl.records import Finish, Segment
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings
from asyncrl.system.places import JOURNAL
from tests.benchmarks.signal_replay import (
    Sampled,
    decisions,
    oracle_share,
    pass_rates,
    pilot_share,
    read_groups,
    report,
    useful_share,
)


def of_two_kinds(num_groups: int = 400) -> list[Sampled]:
    """Every other row is always solved, the others are solved by half of their samples."""
    random = np.random.default_rng(0)
    rewards = [np.ones(8) if i % 2 else (random.random(8) < 0.5) * 1.0 for i in range(num_groups)]
    return [Sampled(i, i // 40, found, np.full(8, 5)) for i, found in enumerate(rewards)]


def test_groups_are_read_in_the_order_of_versions_with_the_tokens_of_all_their_segments(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / JOURNAL)
    settings = QueueSettings(groups_per_batch=1, samples_per_group=2, max_staleness=1, num_steps=9)
    queue = ReplayQueue(journal, settings, has_signal=correctness_differs)
    queue.announce(0)
    whole, with_fault = queue.admit(make_task()), queue.admit(make_task())
    for each, rewards in ((whole, (1.0, 0.0)), (with_fault, (1.0, None))):
        for trajectory, reward in zip(each.trajectories, rewards, strict=True):
            parts = [Segment(0, [7, 7], [-0.5, -0.25]), Segment(0, [7], [-1.0])]
            queue.append(each, trajectory, parts, Finish.STOP)
            queue.score(each, trajectory, make_score(reward), "text")
    queue.make_ready(whole, {t.trajectory_id: 0.5 for t in whole.trajectories})
    queue.make_ready(with_fault, {with_fault.trajectories[0].trajectory_id: 0.0})
    journal.barrier_blocking()
    journal.close()
    (found,) = read_groups(tmp_path)
    assert (found.version, found.correct.tolist()) == (0, [1.0, 0.0])
    assert found.tokens.tolist() == [3, 3]


def test_an_oracle_asks_the_rows_that_are_solved_by_half() -> None:
    groups = of_two_kinds()
    weights = pass_rates(groups)
    assert useful_share(groups) == pytest.approx(0.5, abs=0.01)
    assert oracle_share(weights, 8, 0.4) == pytest.approx(1 - 2 / 2**8, abs=0.01)
    assert oracle_share(weights, 8, 1.0) == pytest.approx(0.5, abs=0.01)


def test_a_pilot_of_two_stops_rows_that_are_always_solved() -> None:
    groups = of_two_kinds(1200)
    useful, kept = pilot_share(groups, 2, list(decisions(groups, 2, 0.6)))
    assert useful > useful_share(groups) + 0.15 and kept > 0.75
    # Where two rewards alone extend a pilot, half of those of mixed rows stop.
    _, kept = pilot_share(groups, 2, list(decisions(groups, 2, 1.0)))
    assert kept == pytest.approx(0.5, abs=0.07)


def test_the_report_has_a_line_per_choice() -> None:
    lines = report(of_two_kinds(80)).splitlines()
    assert lines[0] == "80 groups of 8"
    assert sum("oracle" in line for line in lines) == 5 and sum("pilot of" in line for line in lines) == 3
