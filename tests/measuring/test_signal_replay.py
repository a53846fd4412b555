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


def group(row: int, version: int, right: list[float], nats: float, tokens: int = 5) -> Sampled:
    size = len(right)
    return Sampled(row, version, np.array(right), np.full(size, nats), np.full(size, tokens))


def of_two_kinds(num_groups: int = 400) -> list[Sampled]:
    """Every other row is always solved, and surely; the others are solved by half of their samples."""
    random = np.random.default_rng(0)
    return [
        group(i, i // 40, [1.0] * 8, 0.05)
        if i % 2
        else group(i, i // 40, [float(x) for x in random.random(8) < 0.5], 3.0)
        for i in range(num_groups)
    ]


def test_groups_are_read_in_the_order_of_versions_with_the_log_probs_of_all_their_segments(
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
    assert found.nats.tolist() == [1.75, 1.75] and found.tokens.tolist() == [3, 3]


def test_an_oracle_asks_the_rows_that_are_solved_by_half() -> None:
    groups = of_two_kinds()
    weights = pass_rates(groups)
    assert useful_share(groups) == pytest.approx(0.5, abs=0.01)
    assert oracle_share(weights, 8, 0.4) == pytest.approx(1 - 2 / 2**8, abs=0.01)
    assert oracle_share(weights, 8, 1.0) == pytest.approx(0.5, abs=0.01)


def test_a_pilot_of_one_finds_them_by_its_log_probs_and_not_by_its_reward() -> None:
    groups = of_two_kinds(1200)
    shares = [pilot_share(groups, 1, list(decisions(groups, 1, 0.4, reads))) for reads in (False, True)]
    (by_rewards, _), (by_logprobs, kept) = shares
    # Of 200 groups without a signal some go on before the regression is fitted, and one of 16 later.
    assert by_rewards < 0.6 and by_logprobs > 0.75 and kept > 0.95


def test_the_report_has_a_line_per_choice() -> None:
    lines = report(of_two_kinds(80)).splitlines()
    assert lines[0] == "80 groups of 8"
    assert sum("oracle" in line for line in lines) == 5 and sum("pilot of" in line for line in lines) == 8
