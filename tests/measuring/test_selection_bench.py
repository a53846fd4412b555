"""Selections and pilots at equal tokens: what of a journal counts as wasted, and how curves are compared."""

import json
import math
from pathlib import Path

import pytest
from fakes.records import correctness_differs, make_score, make_task

from asyncrl.journal.writer import Journal
from asyncrl.records import DropReason, Finish, Segment
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings
from asyncrl.system.places import JOURNAL, METRICS
from tests.benchmarks.selection_bench import Run, fewer_tokens, parse_arm, read_run, table


def run_of(arm: str, seed: int, tokens: list[int], accuracy: list[float], wasted: int = 0) -> Run:
    return Run(arm, seed, tokens, accuracy, list(range(len(tokens))), tokens[-1], wasted)


def test_tokens_of_groups_with_one_reward_are_wasted_whatever_became_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "shipped-0"
    folder.mkdir()
    settings = QueueSettings(groups_per_batch=1, samples_per_group=2, max_staleness=1, num_steps=9)
    journal = Journal(folder / JOURNAL)
    queue = ReplayQueue(journal, settings, has_signal=correctness_differs)
    queue.announce(0)
    # Group 0 is mixed, group 1 all right and dropped, group 2 not at its end: 2 x 3, 2 x 5 and 7 tokens.
    mixed, dropped = queue.admit(make_task()), queue.admit(make_task())
    for group, length, rewards in ((mixed, 3, (1.0, 0.0)), (dropped, 5, (1.0, 1.0))):
        for trajectory, reward in zip(group.trajectories, rewards, strict=True):
            queue.append(group, trajectory, [Segment(0, [7] * length, [-0.5] * length)], Finish.STOP)
            queue.score(group, trajectory, make_score(reward), "text")
    queue.make_ready(mixed, {t.trajectory_id: 0.5 for t in mixed.trajectories})
    queue.drop(dropped, DropReason.NO_SIGNAL)
    queue.take(0)
    queue.announce(1)
    open_group = queue.admit(make_task())
    queue.append(open_group, open_group.trajectories[0], [Segment(1, [7] * 7, [-0.5] * 7)], None)
    journal.barrier_blocking()
    journal.close()
    rows = [{"kind": "eval", "when": "x", "step": v, "greedy_accuracy": 0.1 * v} for v in (0, 1, 2)]
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = read_run("shipped", 0, folder)
    assert (run.generated, run.wasted, run.tokens) == (23, 10, [0, 16, 23])
    early = read_run("shipped", 0, folder, until=1)
    assert (early.generated, early.wasted, early.tokens, early.accuracy) == (16, 10, [0, 16], [0.0, 0.1])
    assert (run.accuracy, run.steps) == ([0.0, 0.1, 0.2], [0, 1, 2])


def test_a_curve_is_read_along_its_straight_lines() -> None:
    run = run_of("shipped", 0, [0, 100, 200, 400], [0.2, 0.6, 0.5, 0.9])
    assert run.tokens_to(0.1) == 0
    assert run.tokens_to(0.4) == pytest.approx(50)
    assert run.tokens_to(0.7) == pytest.approx(300)
    assert run.tokens_to(0.95) is None
    assert run.accuracy_at(50) == pytest.approx(0.4)
    assert run.accuracy_at(400) == pytest.approx(0.9)
    with pytest.raises(ValueError, match="400 tokens, fewer than 401"):
        run.accuracy_at(401)
    # Trapezia: 100 x 0.4 + 100 x 0.55 + 100 x 0.6 (from 0.5 to 0.7).
    assert run.mean_accuracy(300) == pytest.approx(155 / 300)


def test_arms_are_compared_seed_by_seed() -> None:
    curve = [0.2, 0.6, 1.0]
    slow = [run_of("shipped", seed, [0, 200 + 20 * seed, 400 + 40 * seed], curve, 200) for seed in (0, 1)]
    fast = [run_of("pilot", seed, [0, 100 + 10 * seed, 200 + 20 * seed], curve, 50) for seed in (0, 1)]
    assert fewer_tokens(fast[1], slow[1], [0.4, 0.8]) == pytest.approx(math.log(0.5))
    assert fewer_tokens(fast[1], slow[1], [1.1]) is None
    heads, _, base, arm = table([*slow, *fast], [0.4]).splitlines()
    assert heads.startswith("| arm | seeds | waste | generated | tokens to 40% | accuracy at 0k |")
    # 200 of 400 and of 440: mean 47.7%, 12.706 x 3.21 / sqrt(2); no difference to itself.
    assert base.startswith("| shipped | 2 | 47.7 ± 28.9% |") and base.endswith("|  |  |")
    # Every token is worth two, in both seeds: no width.
    assert arm.endswith("| 50% (50-50) |")


def test_the_mean_of_one_seed_has_no_interval_and_a_level_that_is_not_reached_is_said() -> None:
    last = table([run_of("shipped", 0, [0, 1000], [0.2, 0.6], 250)], [0.4, 0.8]).splitlines()[-1]
    assert last == "| shipped | 1 | 25.0% | 1.0k | 0.5k | never | 60.0% | 40.0% |  |  |"


def test_an_arm_is_a_name_and_what_it_changes() -> None:
    assert parse_arm("both: a.b=1 c.d=x") == ("both", ["a.b=1", "c.d=x"])
    assert parse_arm("shipped:") == ("shipped", [])
