"""Faults of a run: by cause, on the terminal and in the report."""

import io
import sqlite3
from pathlib import Path

from rich.console import Console

from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.write import write_report
from asyncrl.readers.status.status_lines import print_end


def break_verdicts(run_folder: Path) -> None:
    db = sqlite3.connect(run_folder / "journal.sqlite")
    raised = "the verifier raised TypeError: [b]%s</td> (./v.py:3)"
    for name, detail in (
        ("00000000-00", raised % "a"),
        ("00000000-01", raised % "b"),
        ("00000001-00", "the worker was ended by SIGKILL"),
    ):
        db.execute(
            "UPDATE trajectories SET outcome = 'fault', detail = ? WHERE trajectory_id = ?", (detail, name)
        )
    db.executemany(
        "INSERT INTO retried_faults VALUES (?, ?, ?, ?, ?)",
        [
            ("TypeError at ./v.py:3", 1, "train:1", raised % "c", "Traceback"),
            ("the worker crashed: SIGSEGV", 39, "train:9", "the worker crashed: SIGSEGV", "frames"),
        ],
    )
    db.commit()
    db.close()


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
