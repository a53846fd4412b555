"""What became of the groups of each step, as counts."""

from pathlib import Path

from fakes.records import finish, make_queue, make_task

from asyncrl.journal.ledger import read_ledger
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.records import DropReason


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
