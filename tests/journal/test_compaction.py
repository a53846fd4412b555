"""Tokens that nothing will ask for again leave the journal; their fate stays."""

import json
from pathlib import Path

import pytest
from fakes.records import finish, make_queue, make_task

from asyncrl.errors import QueueError
from asyncrl.journal.compaction import Compaction
from asyncrl.journal.conservation import read_conservation
from asyncrl.journal.packing import pack_logprobs
from asyncrl.journal.queue_state import compacted_before, load_batch
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.journal.statements import trained_tokens
from asyncrl.model.column_bytes import KEPT_SETS, ROUTES, TEACHER_LOGPROBS
from asyncrl.records import DropReason, Finish, Segment, TrainedTokens
from asyncrl.replay.queue import ReplayQueue


def train_steps(queue: ReplayQueue, steps: range, *, num_tokens: int = 3) -> None:
    """Admits, finishes and takes one batch per step."""
    for step in steps:
        queue.announce(step)
        while queue.can_admit():
            finish(queue, queue.admit(make_task(queue.num_admitted)), version=step, num_tokens=num_tokens)
        assert queue.take(step) is not None


def commit(queue: ReplayQueue, compaction: Compaction, version: int) -> None:
    queue.commit(version, f"step-{version}")
    queue.journal.barrier_blocking()
    run_all(compaction, queue)


def run_all(compaction: Compaction, queue: ReplayQueue) -> None:
    queue.journal.barrier_blocking()
    compaction.committed()
    while compaction.run():
        queue.journal.barrier_blocking()


def versions_with_tokens(queue: ReplayQueue) -> list[int]:
    rows = queue.journal.read(
        "SELECT DISTINCT taken_version FROM segments JOIN trajectories USING (trajectory_id) JOIN groups "
        "USING (group_id) WHERE taken_version IS NOT NULL ORDER BY 1"
    )
    return [version for (version,) in rows]


def test_steps_behind_the_kept_ones_lose_their_tokens(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, staleness=0)
    compaction = Compaction(queue.journal, keep_steps=2, keep_checkpoints=1)
    train_steps(queue, range(5))
    queue.journal.barrier_blocking()
    names = queue.journal.read(
        "SELECT trajectory_id, taken_version FROM trajectories JOIN groups USING (group_id)"
    )
    for name, version in names:
        queue.journal.write(*trained_tokens([TrainedTokens(name, b"", b"")], version))
    commit(queue, compaction, 5)
    # The batches of versions 0 to 4 are trained; two behind the checkpoint stay.
    assert versions_with_tokens(queue) == [3, 4] and compacted_before(queue.journal) == 3
    assert queue.journal.read("SELECT count(*) FROM trajectories WHERE prompt_tokens = x''") == [(12,)]
    assert queue.journal.read("SELECT count(*) FROM trajectories WHERE text IS NULL") == [(12,)]
    assert queue.journal.read("SELECT DISTINCT taken_version FROM trained_tokens ORDER BY 1") == [(3,), (4,)]


def test_what_a_kept_checkpoint_may_ask_for_stays_however_old(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, staleness=0)
    compaction = Compaction(queue.journal, keep_steps=1, keep_checkpoints=2)
    train_steps(queue, range(6))
    commit(queue, compaction, 2)
    assert versions_with_tokens(queue) == [0, 1, 2, 3, 4, 5]
    commit(queue, compaction, 6)
    # Should checkpoint 6 be damaged, the trainer continues from 2 with the batch of version 2.
    assert versions_with_tokens(queue) == [2, 3, 4, 5]
    assert len(load_batch(queue.journal, 2, 1.0).sequences) == 4


def test_a_long_stretch_is_compacted_a_little_at_a_time_and_a_restart_continues_it(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, staleness=0)
    compaction = Compaction(queue.journal, keep_steps=1, keep_checkpoints=1)
    train_steps(queue, range(6))
    queue.commit(6, "")
    queue.journal.barrier_blocking()
    compaction.committed()
    assert compaction.run()
    queue.journal.barrier_blocking()
    assert versions_with_tokens(queue) == [2, 3, 4, 5]
    again = Compaction(queue.journal, keep_steps=1, keep_checkpoints=1)
    assert again.run() and again.run() and not again.run()
    queue.journal.barrier_blocking()
    assert versions_with_tokens(queue) == [5]


def test_what_is_not_committed_is_never_touched(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, staleness=0)
    compaction = Compaction(queue.journal, keep_steps=1, keep_checkpoints=1)
    train_steps(queue, range(4))
    run_all(compaction, queue)
    assert versions_with_tokens(queue) == [0, 1, 2, 3]


def routed(tokens: list[int]) -> Segment:
    size = len(tokens)
    columns = {KEPT_SETS: bytearray(size), ROUTES: bytearray(size)}
    return Segment(0, tokens, [-0.5] * size, columns=columns)


def test_dropped_groups_are_compacted_and_open_ones_are_not(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=1)
    compaction = Compaction(queue.journal, keep_steps=1, keep_checkpoints=1)
    queue.announce(0)
    dropped, open_group = queue.admit(make_task(0)), queue.admit(make_task(1))
    queue.append(dropped, dropped.trajectories[0], [routed([1, 2])], None)
    queue.append(open_group, open_group.trajectories[0], [routed([3])], None)
    queue.add_columns(dropped, {"00000000-00": {TEACHER_LOGPROBS: pack_logprobs([-0.1, -0.2])}})
    queue.add_columns(open_group, {"00000001-00": {TEACHER_LOGPROBS: pack_logprobs([-0.3])}})
    queue.drop(dropped, DropReason.SERVER)
    # Versions 0 to 2 are as good as trained: only the boundary matters here.
    queue.journal.write(("INSERT INTO commits VALUES (3, '', 0)", ()))
    queue.journal.barrier_blocking()
    run_all(compaction, queue)
    for table in ("segments", "kept_sets", "routes", "teacher_logprobs"):
        assert queue.journal.read(f"SELECT trajectory_id FROM {table}") == [("00000001-00",)]
    assert queue.journal.read("SELECT trajectory_id, num_tokens FROM compacted") == [("00000000-00", 2)]


def test_versions_and_lengths_stay_and_the_view_shows_them(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, samples=2, staleness=1)
    compaction = Compaction(queue.journal, keep_steps=1, keep_checkpoints=1)
    queue.announce(0)
    group = queue.admit(make_task(0))
    first, second = group.trajectories
    queue.append(group, first, [Segment(0, [1, 2], [-0.5] * 2), Segment(0, [3], [-0.5])], None)
    queue.append(group, first, [Segment(1, [4], [-0.5], True)], Finish.STOP)
    queue.append(group, second, [Segment(0, [5], [-0.5])], Finish.STOP)
    queue.make_ready(group, {})
    queue.journal.write(("UPDATE groups SET state = 'trained', taken_version = 0", ()))
    queue.journal.barrier_blocking()
    view = JournalReader(tmp_path / "journal.sqlite")
    before = view.groups(GroupFilter())
    queue.journal.write(("INSERT INTO commits VALUES (2, '', 0)", ()))
    queue.journal.barrier_blocking()
    run_all(compaction, queue)
    runs = dict(queue.journal.read("SELECT trajectory_id, segments FROM compacted"))
    assert json.loads(runs["00000000-00"]) == [[0, 3, 0], [1, 1, 1]]
    assert view.groups(GroupFilter()) == before
    assert (before[0]["tokens"], before[0]["version_min"], before[0]["version_max"]) == (5, 0, 1)
    shown = view.group(0)
    assert shown is not None and [t["compacted"] for t in shown["trajectories"]] == [
        [[0, 3, 0], [1, 1, 1]],
        [[0, 1, 0]],
    ]


def test_the_books_balance_after_compaction(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, staleness=0)
    compaction = Compaction(queue.journal, keep_steps=1, keep_checkpoints=1)
    train_steps(queue, range(4))
    commit(queue, compaction, 4)
    books = read_conservation(tmp_path / "journal.sqlite")
    assert books == queue.conservation() and books["trained"] == books["generated"] > 0


def test_a_compacted_batch_is_refused_with_the_knob(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, staleness=0)
    train_steps(queue, range(4))
    commit(queue, Compaction(queue.journal, keep_steps=1, keep_checkpoints=1), 4)
    with pytest.raises(QueueError, match=r"steps 1 to 3 are compacted.*replay\.keep_steps"):
        load_batch(queue.journal, 2, 1.0)
    assert load_batch(queue.journal, 3, 1.0).sequences


def test_the_file_stops_growing(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, staleness=0, steps=100)
    compaction = Compaction(queue.journal, keep_steps=2, keep_checkpoints=1)
    sizes = []
    for step in range(40):
        train_steps(queue, range(step, step + 1), num_tokens=4000)
        commit(queue, compaction, step + 1)
        ((pages,),) = queue.journal.read("PRAGMA page_count")
        sizes.append(pages * 4096)
    # 4 trajectories x 4000 tokens x 8 bytes a step: three are held; of the rest some 300 bytes each.
    assert sizes[-1] - sizes[9] < 30 * 4 * 1000
    assert sizes[-1] < 6 * 4 * 4000 * 8
