"""The journal: ordered, durable; a failure ends the run with a name, and no barrier waits after it."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.journal import writer as module
from asyncrl.journal.connection import bump
from asyncrl.journal.writer import Journal, JournalError


def test_closing_writes_what_was_handed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    journal.write(bump("a", 1))
    journal.close()
    assert sqlite3.connect(tmp_path / "j.sqlite").execute("SELECT * FROM counters").fetchall() == [("a", 1)]


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
        "import os, signal, sys\nfrom pathlib import Path\nfrom asyncrl.journal.connection import bump\n"
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


LIMIT_SECONDS = 30.0


FAILURES: list[tuple[object, str]] = [
    ("\ud800", "UnicodeEncodeError"),
    (2**70, "OverflowError"),
    (object(), "type 'object' is not supported"),
]


@pytest.mark.parametrize(("value", "said"), FAILURES)
def test_what_cannot_be_written_fails_every_barrier_and_is_told_once(
    tmp_path: Path, value: object, said: str
) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    told: list[JournalError] = []
    journal.on_failure(told.append)
    journal.write(bump("a", 1), ("INSERT INTO meta VALUES ('k', ?)", (value,)))
    for _ in range(3):
        with pytest.raises(JournalError, match=said):
            barrier(journal)
    with pytest.raises(JournalError, match=said):
        journal.write(bump("a", 1))
    with pytest.raises(JournalError, match=said):
        journal.close()
    assert len(told) == 1
    assert "a defect of asyncrl, not of the disk" in str(told[0]) and "disk space" not in str(told[0])
    # The statements that were handed over with it are not there either.
    assert journal.read("SELECT * FROM counters") == []


def spoil_by_a_full_disk(journal: Journal) -> None:
    ((pages,),) = journal._connection.execute("PRAGMA page_count").fetchall()
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")


def forbid_writing(journal: Journal) -> None:
    journal._connection.execute("PRAGMA query_only = ON")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_by_a_full_disk, "database or disk is full.*free up disk space"),
        (forbid_writing, "readonly database.*make the file writable"),
    ],
)
def test_the_way_out_is_that_of_the_trouble(
    tmp_path: Path, spoil: Callable[[Journal], None], said: str
) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    spoil(journal)
    journal.write(("INSERT INTO meta VALUES ('k', ?)", ("x" * 100_000,)))
    with pytest.raises(JournalError, match=said):
        barrier(journal)


def test_who_is_told_of_a_failure_may_fail_without_leaving_a_barrier_waiting(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")

    def fail(error: JournalError) -> None:
        raise RuntimeError("the loop is closed")

    journal.on_failure(fail)
    journal.write(("INSERT INTO meta VALUES ('k', ?)", ("\ud800",)))
    with pytest.raises(JournalError, match="UnicodeEncodeError"):
        barrier(journal)


async def test_a_barrier_that_nobody_waits_for_any_more_stops_nothing(tmp_path: Path) -> None:
    """A take that is asked again gives its barrier up while the writer still works on it."""
    journal = Journal(tmp_path / "j.sqlite")
    for _ in range(20):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await journal.barrier()
    journal.write(bump("a", 1))
    barrier(journal)
    assert journal.read("SELECT * FROM counters") == [("a", 1)]


def barrier(journal: Journal) -> None:
    """`barrier_blocking`, but a test that would wait without end fails."""
    run_within(journal.barrier_blocking)


def run_within(work: Callable[[], None]) -> None:
    found: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            found.append(error)
        else:
            found.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    assert found, "the barrier still waits"
    if found[0] is not None:
        raise found[0]
