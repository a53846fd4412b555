"""The books: every generated token has one fate."""

import sqlite3
from pathlib import Path

import pytest
from fakes.finished_run import write_journal
from fakes.records import finish, make_queue, make_task

from asyncrl.journal.conservation import Conservation, read_ledger
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.journal.responses import SampledTokens, read_sampled
from asyncrl.journal.writer import Journal
from asyncrl.records import DropReason


def test_balanced_books_miss_nothing() -> None:
    books = Conservation({"generated": 10, "trained": 7, "queued": 1, "dropped: stale": 2})
    assert books.missing_tokens() == 0


def test_a_token_nobody_accounts_for_is_missing_and_one_counted_twice_is_negative() -> None:
    assert Conservation({"generated": 10, "trained": 7}).missing_tokens() == 3
    assert Conservation({"generated": 10, "trained": 7, "queued": 4}).missing_tokens() == -1


def test_fates_come_with_their_share_trained_first_then_the_largest() -> None:
    books = Conservation(
        {"generated": 10, "dropped: stale": 2, "queued": 3, "trained": 5, "dropped: fault": 0},
        {"trained": 4, "queued": 1},
    )
    assert [(fate.name, fate.tokens, fate.groups, fate.share) for fate in books.fates()] == [
        ("trained", 5, 4, 0.5),
        ("queued", 3, 1, 0.3),
        ("dropped: stale", 2, 0, 0.2),
    ]
    assert books.generated_groups() == 5


def test_a_run_that_generated_nothing_has_an_empty_table() -> None:
    (trained,) = Conservation({"generated": 0, "trained": 0}).fates()
    assert (trained.tokens, trained.share) == (0, 0.0)


def test_each_group_stands_in_the_row_of_its_step_and_of_its_admission(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2, staleness=1, repeated=1)
    queue.announce(0)
    while queue.can_admit():
        group = queue.admit(make_task(queue.num_admitted))
        if group.group_id == 3:
            queue.drop(group, DropReason.SERVER)
        elif group.group_id < 3:
            finish(queue, group, version=0)
    queue.take(0)
    queue.commit(1, "step-1")
    queue.announce(1)
    finish(queue, queue.live[4], version=1)
    queue.take(1)
    queue.journal.barrier_blocking()
    second, first = read_ledger(queue.journal)
    assert (first["step"], first["trained"], first["repeated"], first["dropped"]) == (1, 2, 0, {"server": 1})
    # Groups 0 to 4: two trained in step 1, two taken for step 2, one dropped.
    assert (first["admitted"], first["open"], first["ready"]) == (5, 0, 0)
    assert (second["step"], second["taken"], second["repeated"], second["admitted"]) == (2, 2, 1, 0)
    assert [row["step"] for row in read_ledger(queue.journal, before=2)] == [1]
    assert read_ledger(queue.journal, limit=1) == [second]


def test_the_numbers_of_a_row_are_the_groups_that_their_filter_lists(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=1, repeated=1)
    queue.announce(0)
    dropped, trained = queue.admit(make_task(0)), queue.admit(make_task(1))
    queue.drop(dropped, DropReason.STALE)
    finish(queue, trained, version=0)
    queue.take(0)
    queue.journal.barrier_blocking()
    reader = JournalReader(tmp_path / "journal.sqlite")

    def ids(**wanted: object) -> list[int]:
        return [row["group_id"] for row in reader.groups(GroupFilter(**wanted))]

    assert ids(admitted=0, state="dropped", reason="stale") == [0]
    assert ids(step=1) == [1] and ids(repeated=1) == [] and ids(admitted=1) == []
    assert ids(task="train:1") == [1] and ids(task="train:0") == []


def test_a_journal_without_groups_has_no_ledger(tmp_path: Path) -> None:
    assert read_ledger(make_queue(tmp_path).journal) == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_journal(tmp_path / "journal.sqlite")
    return tmp_path / "journal.sqlite"


# Three prompts of 4 tokens, responses of 3 and 4, 2, 1. A prompt's positions look at 1 + 2 + 3 + 4 tokens;
# those fed back at 5 + 6, 5 + 6 + 7, 5 and none.
WHOLE = SampledTokens(12.0, 10, 6, 3 * 10 + 11 + 18 + 5)


def test_a_prompt_counts_once_for_its_group_and_the_last_token_is_not_fed_back(path: Path) -> None:
    assert read_sampled(JournalReader(path)) == WHOLE


def test_compacted_trajectories_count_with_the_mean_prompt_of_the_others(path: Path) -> None:
    with sqlite3.connect(path) as db:
        for name, length in (("00000000-00", 3), ("00000000-01", 4)):
            db.execute("UPDATE trajectories SET prompt_tokens = x'' WHERE trajectory_id = ?", (name,))
            db.execute("DELETE FROM segments WHERE trajectory_id = ?", (name,))
            db.execute("INSERT INTO compacted VALUES (?, ?, 0, 1, '[]')", (name, length))
    assert read_sampled(JournalReader(path)) == WHOLE


def test_a_run_that_sampled_nothing_has_nothing(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.sqlite").close()
    assert read_sampled(JournalReader(tmp_path / "journal.sqlite")) == SampledTokens(0.0, 0, 0, 0.0)
