"""The audit of chaos runs finds what it is for: each fault is put into a journal by hand."""

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chaos.audit import Audit
from fakes.records import make_queue, make_score, make_task
from fakes.turns import play_turns, told

from asyncrl.records import Segment

LINE = "00000000-00"


def segment(*tokens: int) -> Segment:
    return Segment(0, list(tokens), [-1.0] * len(tokens))


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    """The audit of a run with one open group: two trajectories of two turns, one of which has ended."""
    queue = make_queue(tmp_path, samples=2)
    queue.announce(0)
    group = queue.admit(make_task())
    first, second = group.trajectories
    for trajectory in (first, second):
        play_turns(queue, group, trajectory, [([segment(1, 2)], told("on", tokens=[40]))], [segment(3, 4)])
    queue.score(group, first, make_score(1.0), "text")
    queue.journal.barrier_blocking()
    queue.journal.close()
    run: Any = SimpleNamespace(run_folder=tmp_path)
    return Audit(run)


def change(audit: Audit, *statements: str) -> None:
    journal = sqlite3.connect(audit.run.run_folder / "journal.sqlite")
    with journal:
        for statement in statements:
            journal.execute(statement)
    journal.close()


def test_a_journal_that_only_grew_has_no_faults(audit: Audit) -> None:
    audit.look()
    audit.look()
    assert not audit.faults


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (f"DELETE FROM segments WHERE trajectory_id = '{LINE}' AND position = 3", "are the same now"),
        (
            f"UPDATE segments SET version = 0, logprobs = zeroblob(8) WHERE trajectory_id = '{LINE}'",
            "are the same",
        ),
        (f"UPDATE segments SET position = 5 WHERE trajectory_id = '{LINE}' AND position = 3", "expected 3"),
        (f"UPDATE observations SET turn = 1 WHERE trajectory_id = '{LINE}'", "the answered turns of"),
        (f"UPDATE trajectories SET outcome = 'wrong' WHERE trajectory_id = '{LINE}'", "the verdict of"),
        (f"DELETE FROM observations WHERE trajectory_id = '{LINE}'", "expected 2"),
        ("UPDATE counters SET value = value + 1 WHERE name = 'tokens_generated'", "conservation"),
        ("UPDATE groups SET admitted_version = 1", "version 0 behind version 1"),
        (f"INSERT INTO calls VALUES ('{LINE}', 0, 0, 'd', 3, 0)", "has no turn 0 of branch 3"),
    ],
)
def test_what_is_lost_changed_or_doubled_is_a_fault(audit: Audit, statement: str, said: str) -> None:
    audit.look()
    change(audit, statement)
    audit.look()
    assert any(said in fault for fault in audit.faults), audit.faults


def test_two_calls_of_one_turn_and_a_group_trained_twice_are_faults(audit: Audit) -> None:
    audit.look()
    calls = [f"INSERT INTO calls VALUES ('{LINE}', {number}, 0, 'd', 0, 1)" for number in range(2)]
    change(audit, *calls)
    audit.look()
    assert audit.faults == [f"turn ('{LINE}', 0, 1) answers 2 calls"]


def test_what_an_agent_left_is_counted_and_no_fault(audit: Audit) -> None:
    audit.may_abandon = True
    audit.look()
    change(
        audit,
        f"DELETE FROM segments WHERE trajectory_id = '{LINE}' AND position = 3",
        "INSERT INTO counters VALUES ('tokens_dropped:abandoned', 2)",
    )
    audit.look()
    assert not audit.faults and audit.num_abandoned == 1
