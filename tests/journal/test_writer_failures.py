"""The journal's thread: whatever happens in it ends the run with a name, and no barrier waits after it."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.journal.counters import bump
from asyncrl.journal.writer import Journal, JournalError

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
    journal.close()


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
