"""Reading the journal of a run without disturbing its writer."""

import sqlite3
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.journal.rows import GroupRow, GroupSummary, SegmentRow, TrajectoryRow


@pytest.fixture
def journal(run_folder: Path) -> JournalReader:
    return JournalReader(run_folder / "journal.sqlite")


def test_groups_come_newest_first_with_their_trajectories_summed_up(journal: JournalReader) -> None:
    newest, _, oldest = journal.groups(GroupFilter())
    assert newest["group_id"] == 2
    assert (oldest["num_trajectories"], oldest["num_correct"], oldest["num_wrong"]) == (2, 1, 1)
    # Trajectories of 3 and 4 tokens, by versions 0 and 1; rewards 1 and 0.
    assert (oldest["tokens"], oldest["version_min"], oldest["version_max"]) == (7, 0, 1)
    assert oldest["reward"] == 0.5


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (GroupFilter(state="dropped"), [1]),
        (GroupFilter(step=2), [0]),
        (GroupFilter(outcome="wrong"), [0]),
        (GroupFilter(before=2), [1, 0]),
        (GroupFilter(before=2, limit=1), [1]),
        (GroupFilter(state="open", outcome="wrong"), []),
    ],
)
def test_groups_can_be_filtered_and_paged(
    journal: JournalReader, wanted: GroupFilter, ids: list[int]
) -> None:
    assert [row["group_id"] for row in journal.groups(wanted)] == ids


def test_a_group_holds_its_trajectories_with_tokens_and_logprobs(journal: JournalReader) -> None:
    group = journal.group(0)
    assert group is not None
    first, second = group["trajectories"]
    assert [segment["version"] for segment in first["segments"]] == [0, 1]
    assert [segment["is_continued"] for segment in first["segments"]] == [False, True]
    assert first["segments"][0]["logprobs"] == [-0.5, -0.25]
    assert len(second["segments"][0]["tokens"]) == 4
    assert journal.group(99) is None


def test_fates_count_each_group_once(journal: JournalReader) -> None:
    assert journal.fates() == {"trained": 1, "dropped: stale": 1, "queued": 1}
    assert journal.step_range() == (2, 2)


def test_a_writer_continues_while_the_journal_is_read(run_folder: Path, journal: JournalReader) -> None:
    writer = sqlite3.connect(run_folder / "journal.sqlite", timeout=0)
    writer.execute("INSERT INTO groups VALUES (3, 'train:4', '5+5=', 'open', 1, 4.0, NULL, NULL)")
    # Not committed: readers see the state before.
    assert len(journal.groups(GroupFilter())) == 3
    writer.commit()
    assert len(journal.groups(GroupFilter())) == 4
    writer.close()


def test_a_missing_journal_is_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Name the folder of a run"):
        JournalReader(tmp_path / "journal.sqlite")


def test_rows_have_the_columns_that_their_types_promise(journal: JournalReader) -> None:
    group = journal.group(0)
    assert group is not None
    trajectory = group["trajectories"][0]
    for row, kind in (
        (journal.groups(GroupFilter())[0], GroupSummary),
        (group, GroupRow),
        (trajectory, TrajectoryRow),
        (trajectory["segments"][0], SegmentRow),
    ):
        assert set(row) == kind.__required_keys__
