"""A run in resumed pieces: what its rows say of each piece, and what its books may not say."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fakes.audited_run import write_audited_run

from asyncrl.system.places import JOURNAL
from tests.benchmarks.long_run import Piece, draw, faults_of, kept_rows, pieces_of, report

RIGHT, WRONG = ("2", "correct"), ("7", "wrong")


def ready(seconds: float) -> dict[str, Any]:
    return {"kind": "event", "event": "ready", "time_seconds": seconds, "step": 0}


def step(number: int, seconds: float, gib: float, reward: float = 0.5) -> dict[str, Any]:
    memory = {f"{name}_memory_gib": gib for name in ("trainer", "server", "controller")}
    columns = {"reward_mean": reward, "response_tokens_mean": 80.0}
    return {"kind": "step", "step": number, "time_seconds": seconds, **memory, **columns}


def evaluation(number: int, accuracy: float) -> dict[str, Any]:
    row = {"kind": "eval", "step": number, "time_seconds": 0.0, "when": "during", "greedy_accuracy": accuracy}
    return row | {"greedy_low": accuracy - 0.1, "greedy_high": accuracy + 0.1}


ROWS = [
    *(ready(0.0), step(1, 900.0, 1.0), step(2, 1800.0, 1.5)),
    # It died, and trains step 2 again; a warning came before it was ready.
    {"kind": "event", "event": "warning", "time_seconds": 8990.0, "step": 2},
    *(ready(9000.0), step(2, 9900.0, 1.0, reward=0.25), evaluation(2, 0.4), step(3, 12600.0, 1.25)),
    # This start was stopped before its first step.
    ready(20000.0),
]


def run_of(folder: Path, num_steps: int) -> Path:
    steps = [{line: (RIGHT, WRONG)} for line in range(1, num_steps + 1)]
    return write_audited_run(folder, steps, overrides=["rollout.groups_per_batch=1"])


def test_a_piece_is_what_one_start_trained() -> None:
    first, second = pieces_of(ROWS)
    assert first == Piece(1, 2, 0.5, dict.fromkeys(first.memory, (1.0, 1.5)))
    assert (second.first_step, second.last_step, second.hours) == (2, 3, 1.0)
    assert "| 2 | 2 to 3 | 1.00 | 1.00 -> 1.25 |" in report([first, second], [evaluation(2, 0.4)])
    assert "1.50 hours in 2 pieces" in report([first, second], [])


def test_of_a_step_that_was_trained_again_the_last_row_is_kept() -> None:
    kept = kept_rows(ROWS)
    assert [(row["kind"], row["step"]) for row in kept] == [
        ("step", 1),
        ("eval", 2),
        ("step", 2),
        ("step", 3),
    ]
    assert [row["reward_mean"] for row in kept if row["kind"] == "step"] == [0.5, 0.25, 0.5]


def test_the_books_of_a_whole_run_balance(tmp_path: Path) -> None:
    assert faults_of(run_of(tmp_path, 3), ROWS) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE counters SET value = value + 5 WHERE name = 'tokens_generated'", "5 tokens have no fate"),
        ("UPDATE groups SET taken_version = 0 WHERE taken_version = 1", "step 1 trained 2 groups, not 1"),
    ],
)
def test_a_book_that_does_not_balance_is_told(tmp_path: Path, change: str, fault: str) -> None:
    run = run_of(tmp_path, 3)
    with sqlite3.connect(run / JOURNAL) as journal:
        journal.execute(change)
    assert any(fault in each for each in faults_of(run, ROWS))


def test_steps_that_the_journal_or_the_metrics_lack_are_told(tmp_path: Path) -> None:
    run = run_of(tmp_path, 3)
    assert "metrics.jsonl has 2 steps, the last of which is 3" in faults_of(run, [ROWS[1], ROWS[-2]])
    assert "the journal has 3 batches, metrics.jsonl 1 steps" in faults_of(run, [ROWS[1]])


def test_the_figure_is_drawn_with_and_without_a_paper(tmp_path: Path) -> None:
    for reference in ([], [36.7, 49.5]):
        draw(path := tmp_path / f"{len(reference)}.svg", kept_rows(ROWS), reference)
        assert ("paper, after" in path.read_text()) is bool(reference)
