"""Warnings in metrics.jsonl: each text once, repetitions counted."""

from pathlib import Path

import pytest

from asyncrl.observe.metrics import warning_log
from asyncrl.observe.metrics.warning_log import WarningLog, warnings_of
from asyncrl.run.metrics_file import MetricsWriter, read_metrics


def test_a_repeated_text_is_counted_and_written_a_few_times(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, clock=iter(range(100)).__next__) as writer:
        log = WarningLog(writer)
        for step in range(2000):
            log.step = step
            log.add("server a is slow", kind="server %s is slow")
        log.add("another", kind="another")
        log.close()
    rows = [row for row in read_metrics(path).events if row["text"] == "server a is slow"]
    assert [row["count"] for row in rows] == [1, 10, 100, 1000, 2000]
    slow, other = warnings_of(read_metrics(path).events)
    assert (slow["count"], slow["first_step"], slow["last_step"]) == (2000, 0, 1999)
    assert (other["text"], other["count"]) == ("another", 1)


def test_many_texts_of_one_kind_are_counted_together(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        log = WarningLog(writer)
        for number in range(500):
            log.add(f"group {number} is dropped", kind="group %d is dropped")
        log.close()
    found = warnings_of(read_metrics(path).events)
    assert len(found) == warning_log.MOST_TEXTS + 1
    (further,) = [each for each in found if each["text"].startswith(warning_log.FURTHER)]
    assert further["count"] == 500 - warning_log.MOST_TEXTS


def test_texts_that_are_kinds_of_their_own_are_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warning_log, "MOST_KINDS", 5)
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        log = WarningLog(writer)
        for number in range(500):
            log.add(f"number {number}", kind=f"number {number}")
        log.close()
    assert len(warnings_of(read_metrics(tmp_path / "metrics.jsonl").events)) < 100


def test_the_counts_of_several_starts_add_up(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for _ in range(2):
        with MetricsWriter(path) as writer:
            log = WarningLog(writer)
            for _ in range(3):
                log.add("resuming", kind="resuming")
            log.close()
    assert [each["count"] for each in warnings_of(read_metrics(path).events)] == [6]
