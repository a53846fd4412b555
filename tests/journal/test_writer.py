"""The journal: ordered, durable, loud when it cannot write."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.journal import writer as module
from asyncrl.journal.counters import bump
from asyncrl.journal.writer import Journal, JournalError


def test_what_is_behind_a_barrier_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    journal.write(bump("a", 2), bump("a", 3))
    journal.barrier_blocking()
    assert journal.read("SELECT * FROM counters") == [("a", 5)]
    journal.close()


def test_closing_writes_what_was_handed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    journal.write(bump("a", 1))
    journal.close()
    assert sqlite3.connect(tmp_path / "j.sqlite").execute("SELECT * FROM counters").fetchall() == [("a", 1)]


def test_statements_handed_over_together_are_committed_together_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    journal.write(bump("a", 1), ("INSERT INTO no_such_table VALUES (1)", ()))
    with pytest.raises(JournalError, match="no_such_table"):
        journal.barrier_blocking()
    assert journal.read("SELECT * FROM counters") == []


def test_after_a_failed_write_every_call_fails(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    journal.write(("INSERT INTO no_such_table VALUES (1)", ()))
    with pytest.raises(JournalError):
        journal.barrier_blocking()
    with pytest.raises(JournalError):
        journal.write(bump("a", 1))


def test_a_full_disk_is_said_and_loses_nothing_that_was_behind_a_barrier(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    journal.write(bump("before", 1))
    journal.barrier_blocking()
    # The page limit makes SQLite fail exactly as it does when the disk is full.
    journal._connection.execute("PRAGMA max_page_count = 1")
    journal.write(*(("INSERT INTO meta VALUES (?, ?)", (str(i), "x" * 4000)) for i in range(50)))
    with pytest.raises(JournalError, match="full"):
        journal.barrier_blocking()
    assert journal.read("SELECT * FROM counters") == [("before", 1)]


def test_kill_9_loses_nothing_behind_a_barrier(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom asyncrl.journal.counters import bump\n"
        "from asyncrl.journal.writer import Journal\n"
        f"j = Journal(Path({str(path)!r}))\n"
        "for i in range(100): j.write(bump('a', 1))\n"
        "j.barrier_blocking()\nj.write(bump('a', 1))\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, "-c", script], check=False)
    assert process.returncode == -signal.SIGKILL
    journal = Journal(path)
    ((value,),) = journal.read("SELECT value FROM counters WHERE name = 'a'")
    assert value in (100, 101)
    journal.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j.sqlite").write_bytes(os.urandom(8192))
    with pytest.raises(InputError, match="cannot be read as the journal of a run"):
        Journal(tmp_path / "j.sqlite")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "none" / "j.sqlite")


def test_a_steady_stream_of_writes_is_committed_at_least_every_interval(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    for _ in range(20000):
        journal.write(bump("a", 1))
    journal.barrier_blocking()
    assert journal.read("SELECT value FROM counters") == [(20000,)]
    assert module.COMMIT_INTERVAL_SECONDS < 1.0
    journal.close()
