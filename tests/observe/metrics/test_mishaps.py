"""Warnings of a run in metrics.jsonl, its faults by cause, and what a run that ended on its own leaves
behind."""

import io
import logging
from pathlib import Path

import pytest
from fakes.finished_run import edit_journal
from rich.console import Console

from asyncrl.errors import ServerError
from asyncrl.observe.metrics import mishaps
from asyncrl.observe.metrics.mishaps import (
    NUM_EVENTS,
    NUM_LOG_LINES,
    RecentEvents,
    WarningLog,
    warnings_of,
    write_post_mortem,
)
from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.write import write_report
from asyncrl.readers.status import print_end
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
    assert len(found) == mishaps.MOST_TEXTS + 1
    (further,) = [each for each in found if each["text"].startswith(mishaps.FURTHER)]
    assert further["count"] == 500 - mishaps.MOST_TEXTS


def test_texts_that_are_kinds_of_their_own_are_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mishaps, "MOST_KINDS", 5)
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


def break_verdicts(run_folder: Path) -> None:
    raised = "the verifier raised TypeError: [b]%s</td> (./v.py:3)"
    edit_journal(
        run_folder,
        "UPDATE trajectories SET outcome = 'fault', detail = ? WHERE trajectory_id = ?",
        *((raised % "a", "00000000-00"), (raised % "b", "00000000-01")),
        ("the worker was ended by SIGKILL", "00000001-00"),
    )
    edit_journal(
        run_folder,
        "INSERT INTO retried_faults VALUES (?, ?, ?, ?, ?)",
        ("TypeError at ./v.py:3", 1, "train:1", raised % "c", "Traceback"),
        ("the worker crashed: SIGSEGV", 39, "train:9", "the worker crashed: SIGSEGV", "frames"),
    )


def test_the_report_groups_faults_by_cause(run_folder: Path) -> None:
    break_verdicts(run_folder)
    faults = collect(run_folder).faults
    assert [(f.cause, f.num_verdicts, f.num_retried, f.task_id) for f in faults] == [
        ("TypeError at ./v.py:3", 2, 1, "train:1"),
        ("the worker was ended by SIGKILL", 1, 0, "train:2"),
        ("the worker crashed: SIGSEGV", 0, 39, "train:9"),
    ]


def test_terminal_and_report_show_them(run_folder: Path) -> None:
    break_verdicts(run_folder)
    report = write_report(run_folder)
    file = io.StringIO()
    print_end(report, run_folder, {}, console=Console(file=file, width=80, highlight=False))
    lines = {" ".join(line.split()) for line in file.getvalue().splitlines()}
    assert "TypeError at ./v.py:3 2 1 train:1" in lines
    page = (run_folder / "report.html").read_text()
    assert "the worker crashed: SIGSEGV 0 39 train:9" in lines
    assert "Faults by cause" in file.getvalue() and "Faults by cause" in page
    assert "<th>TypeError at ./v.py:3</th><td>2</td><td>1</td><td>train:1</td>" in page


def test_a_run_without_faults_shows_no_table_of_them(run_folder: Path) -> None:
    report = write_report(run_folder)
    file = io.StringIO()
    print_end(report, run_folder, {}, console=Console(file=file, width=80))
    assert "faults by cause" not in file.getvalue().lower() + (run_folder / "report.html").read_text().lower()


def test_a_post_mortem_holds_cause_waits_events_and_the_last_lines_of_each_log(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server-0.log").write_text("\n".join(f"line {n}" for n in range(100)))
    with RecentEvents() as events:
        logging.getLogger("asyncrl.serving.fleet").warning("server %s leaves", "http://a")
        logging.getLogger("other").warning("not ours")
        events.add("checkpoint 3")
    path = write_post_mortem(
        tmp_path, ServerError("it died"), state={"What waited for what": "  take waits for x"}, events=events
    )
    text = path.read_text()
    assert "ServerError: it died" in text
    assert "What waited for what\n--------------------\n  take waits for x" in text
    assert "server http://a leaves" in text and "checkpoint 3" in text and "not ours" not in text
    assert f"line {100 - NUM_LOG_LINES}\n" in text and f"line {99 - NUM_LOG_LINES}\n" not in text


def test_only_the_last_events_are_kept() -> None:
    events = RecentEvents()
    for number in range(NUM_EVENTS + 5):
        events.add(f"event {number}")
    assert len(events.lines) == NUM_EVENTS and events.lines[0].endswith("event 5")
