"""The journal of a run read without disturbing its writer, searched, and read back as batches."""

import dataclasses
import itertools
import sqlite3
from pathlib import Path

import pytest
from fakes.records import batch_of, generate, make_queue, make_score, make_task

from asyncrl.errors import InputError
from asyncrl.journal.queue_state import load_batch
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.journal.rows import GroupRow, GroupSummary, SegmentRow, TrajectoryRow
from asyncrl.journal.search import GROUPS_AT_ONCE, search_text
from asyncrl.model.column_bytes import KEPT_SETS, ROUTES
from asyncrl.records import Finish, Segment
from asyncrl.replay.queue import ReplayQueue


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


def test_a_repeated_take_is_the_same_batch_to_the_last_digit(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=2)
    queue.announce(0)
    for number in range(2):
        group = queue.admit(make_task(number))
        first, second = group.trajectories
        queue.append(
            group,
            first,
            [
                Segment(
                    *(0, [1, 2], [-0.1, -0.2]),
                    columns={KEPT_SETS: bytearray(b"\x05\0\0"), ROUTES: bytearray(b"cd")},
                    context={ROUTES: b"ab"},
                ),
                Segment(
                    *(1, [3], [-0.3], True),
                    columns={KEPT_SETS: bytearray(b"\x81\x01\0"), ROUTES: bytearray(b"e")},
                ),
            ],
            Finish.STOP,
        )
        queue.append(group, second, [Segment(0, [9], [-1 / 3])], Finish.LENGTH)
        for trajectory, reward in ((first, 1.0), (second, 0.0)):
            queue.score(group, trajectory, make_score(reward), "")
        queue.make_ready(group, {first.trajectory_id: 0.7, second.trajectory_id: -0.7})
    taken = queue.take(0)
    assert taken is not None
    queue.journal.barrier_blocking()
    from_memory, from_journal = batch_of(taken, 0, 1.0), load_batch(queue.journal, 0, 1.0)
    assert [s.behavior_logprobs for s in from_journal.sequences] == [
        pytest.approx(s.behavior_logprobs, rel=1e-7) for s in from_memory.sequences
    ]
    for a, b in zip(from_memory.sequences, from_journal.sequences, strict=True):
        assert dataclasses.replace(a, behavior_logprobs=[]) == dataclasses.replace(b, behavior_logprobs=[])
    assert from_journal.sequences[0].are_continued == [False, False, True]
    told = [(s.finish, s.outcome, s.source) for s in from_journal.sequences[:2]]
    assert told == [("stop", "correct", "train"), ("length", "wrong", "train")]
    told = {KEPT_SETS: b"\x05\0\0\x81\x01\0", ROUTES: b"abcde"}
    assert [s.columns for s in from_journal.sequences[:2]] == [told, {}]


def test_a_fault_is_not_in_the_repeated_batch(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=3)
    queue.announce(0)
    group = queue.admit(make_task(0))
    generate(queue, group, version=0)
    for trajectory, reward in zip(group.trajectories, (1.0, None, 0.0), strict=True):
        queue.score(group, trajectory, make_score(reward), "")
    names = [t.trajectory_id for t in group.trajectories]
    queue.make_ready(group, {names[0]: 1.0, names[2]: -1.0})
    taken = queue.take(0)
    assert taken is not None
    queue.journal.barrier_blocking()
    expected = [names[0], names[2]]
    assert [s.sequence_id for s in batch_of(taken, 0, 1.0).sequences] == expected
    assert [s.sequence_id for s in load_batch(queue.journal, 0, 1.0).sequences] == expected


def queue_of(folder: Path, texts: list[str]) -> ReplayQueue:
    """One group per text, which is its first response."""
    queue = make_queue(folder, batch=1000)
    queue.announce(0)
    for number, text in enumerate(texts):
        group = queue.admit(make_task(number))
        generate(queue, group, version=0)
        queue.score(group, group.trajectories[0], make_score(), text)
    queue.journal.barrier_blocking()
    return queue


def test_a_hit_says_where_it_is_the_newest_first(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, ["so x is 4% of it", "nothing", "SO X"])
    found = search_text(queue.journal, "so x")
    assert [(hit["trajectory_id"], hit["match"]) for hit in found.hits] == [
        ("00000002-00", "SO X"),
        ("00000000-00", "so x"),
    ]
    assert found.hits[1]["after"] == " is 4% of it" and found.searched_down_to == 0
    # The wildcards of SQL are letters like others.
    assert [hit["group_id"] for hit in search_text(queue.journal, "4%").hits] == [0]
    assert search_text(queue.journal, "4_").hits == []


def test_prompts_are_searched_too(tmp_path: Path) -> None:
    (hit,) = search_text(queue_of(tmp_path, ["", ""]).journal, "1+1=").hits
    assert (hit["group_id"], hit["trajectory_id"], hit["match"]) == (1, None, "1+1=")


def test_a_search_ends_when_its_time_is_over_and_is_continued_from_there(tmp_path: Path) -> None:
    count = 2 * GROUPS_AT_ONCE
    queue = queue_of(tmp_path, ["needle", *["hay"] * (count - 1)])
    ticks = itertools.count()
    first = search_text(queue.journal, "needle", seconds=1, clock=lambda: next(ticks))
    assert (first.hits, first.searched_down_to) == ([], GROUPS_AT_ONCE)
    second = search_text(queue.journal, "needle", below=first.searched_down_to)
    assert [hit["group_id"] for hit in second.hits] == [0] and second.searched_down_to == 0


def test_a_page_of_hits_ends_a_search(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, ["hay"] * (2 * GROUPS_AT_ONCE))
    found = search_text(queue.journal, "hay", limit=5)
    assert len(found.hits) == GROUPS_AT_ONCE == found.searched_down_to
