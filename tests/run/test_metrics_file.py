"""The metrics file: rows as written, resumption, half-written lines."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.small_disk import refused_writes

from asyncrl.errors import DiskError, InputError
from asyncrl.readers.trackers.tracker import Position, rows_left
from asyncrl.run.metrics_file import MetricsFollower, MetricsWriter, read_metrics, written_rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def test_a_row_is_one_flat_line_with_its_kind_and_time(path: Path) -> None:
    with MetricsWriter(path, clock=lambda: 12.5) as writer:
        writer.step({"step": 3, "reward_mean": 0.25, "outcomes": {"correct": 1, "wrong": 3}})
    assert json.loads(path.read_text()) == {
        "kind": "step",
        "time_seconds": 12.5,
        "step": 3,
        "reward_mean": 0.25,
        "outcomes_correct": 1,
        "outcomes_wrong": 3,
    }


def test_a_row_can_be_read_before_the_writer_is_closed(path: Path) -> None:
    with MetricsWriter(path) as writer:
        writer.event("server_joined", url="http://127.0.0.1:1")
        assert read_metrics(path).events[0]["url"] == "http://127.0.0.1:1"


def test_a_number_that_is_not_finite_is_written_as_null(path: Path) -> None:
    with MetricsWriter(path) as writer:
        writer.step({"step": 0, "loss": float("nan")})
    assert read_metrics(path).steps[0]["loss"] is None


def test_reopening_cuts_a_half_written_line_and_keeps_the_rest(path: Path) -> None:
    with MetricsWriter(path) as writer:
        writer.step({"step": 0})
    with path.open("a") as file:
        file.write('{"kind": "step", "ste')
    assert [row["step"] for row in read_metrics(path).steps] == [0]
    with MetricsWriter(path) as writer:
        writer.step({"step": 1})
    assert [row["step"] for row in read_metrics(path).steps] == [0, 1]


def test_readers_take_the_last_row_of_a_step(path: Path) -> None:
    with MetricsWriter(path) as writer:
        writer.step({"step": 0, "reward_mean": 0.1})
        writer.step({"step": 1, "reward_mean": 0.2})
        writer.step({"step": 1, "reward_mean": 0.3})
    assert [row["reward_mean"] for row in read_metrics(path).steps] == [0.1, 0.3]


def test_a_resume_supersedes_later_steps_even_before_they_are_trained_again(path: Path) -> None:
    with MetricsWriter(path) as writer:
        for step in range(1, 5):
            writer.step({"step": step, "attempt": 1})
            writer.evaluation({"step": step, "when": "during", "attempt": 1})
        writer.resumed(2)
        writer.step({"step": 3, "attempt": 2})
    metrics = read_metrics(path)
    # Version 2 is the checkpoint: its own row and evaluation stand.
    assert [(row["step"], row["attempt"]) for row in metrics.steps] == [(1, 1), (2, 1), (3, 2)]
    assert [row["step"] for row in metrics.evaluations] == [1, 2]
    # Nothing is rewritten: the superseded rows are still in the file.
    assert len(path.read_text().splitlines()) == 10


def test_evaluations_are_found_by_when_they_were_made(path: Path) -> None:
    with MetricsWriter(path) as writer:
        writer.evaluation({"step": 0, "when": "before", "greedy_accuracy": 0.5})
        writer.evaluation({"step": 50, "when": "after", "greedy_accuracy": 0.75})
    metrics = read_metrics(path)
    before, after = metrics.evaluation("before"), metrics.evaluation("after")
    assert before is not None and before["greedy_accuracy"] == 0.5
    assert after is not None and after["greedy_accuracy"] == 0.75
    assert metrics.evaluation("during") is None


def test_benchmarks_are_kept_apart_from_held_out_tasks_and_superseded_alike(path: Path) -> None:
    with MetricsWriter(path) as writer:
        writer.benchmark({"step": 0, "when": "before", "benchmark": "gsm8k", "num_tasks": 4})
        writer.benchmark({"step": 9, "when": "after", "benchmark": "gsm8k", "num_tasks": 4})
        writer.resumed(4)
        writer.benchmark({"step": 8, "when": "after", "benchmark": "gsm8k", "num_tasks": 4})
    metrics = read_metrics(path)
    assert [(row["when"], row["step"]) for row in metrics.benchmarks] == [("before", 0), ("after", 8)]
    assert metrics.evaluations == []


def test_each_evaluation_of_a_set_during_training_is_kept_until_a_resumed_run_makes_it_again(
    path: Path,
) -> None:
    with MetricsWriter(path) as writer:
        for step, when in ((0, "before"), (2, "during"), (4, "during"), (6, "during"), (6, "after")):
            writer.benchmark({"step": step, "when": when, "benchmark": "mine", "num_tasks": 4})
        writer.resumed(4)
    found = [(row["when"], row["step"]) for row in read_metrics(path).benchmarks]
    assert found == [("before", 0), ("during", 2), ("during", 4)]
    (added,) = (MetricsFollower(path).read_after(0),)
    assert [row["step"] for row in added.benchmarks] == [0, 2, 4]


def test_a_full_disk_is_said_in_a_sentence(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    with (
        pytest.raises(DiskError, match=r"metrics\.jsonl could not be written.*Free up disk space"),
        refused_writes(),
    ):
        writer.event("ready")
    writer.close()


@pytest.mark.parametrize("num_characters", [10, 20_000])
def test_a_disk_that_takes_half_a_row_is_left_with_whole_rows(tmp_path: Path, num_characters: int) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.event("ready")
    before = path.read_bytes()
    half = len(before) + num_characters // 2
    with pytest.raises(DiskError, match="Free up disk space"), refused_writes(from_bytes=half):
        writer.event("x" * num_characters)
    assert path.read_bytes() == before
    writer.event("room again")
    writer.close()
    assert [row["event"] for row in read_metrics(path).events] == ["ready", "room again"]


@pytest.mark.parametrize("num_characters", [10, 20_000, 2_000_000])
def test_a_row_is_one_write_so_that_no_reader_meets_a_part_of_it(
    tmp_path: Path, num_characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sizes = tmp_path / "metrics.jsonl", [0]
    write = os.write

    def noting_write(file: int, content: bytes) -> int:
        written = write(file, content)
        sizes.append(path.stat().st_size)
        return written

    with MetricsWriter(path) as writer:
        monkeypatch.setattr(os, "write", noting_write)
        writer.event("x" * num_characters)
        writer.event("another")
        monkeypatch.undo()
    # After every write the file ends with a whole row.
    content = path.read_bytes()
    assert len(sizes) == 3 and all(size == 0 or content[size - 1 : size] == b"\n" for size in sizes)


ROW = b'{"kind": "eval", "time_seconds": 0, "step": 2, "when": "during"}\n'


@pytest.mark.parametrize("rest", [b"", b"{", ROW[:-1], b'{"kind": "event", "event": "\xc3'])
@pytest.mark.parametrize(
    "count_rows",
    [
        lambda path: len(read_metrics(path).evaluations),
        lambda path: len(written_rows(path)),
        lambda path: len(MetricsFollower(path).read_after(0).evaluations),
        lambda path: rows_left(path, Position()),
    ],
    ids=["read_metrics", "written_rows", "follower", "rows_left"],
)
def test_every_reader_leaves_a_last_line_without_an_end(
    tmp_path: Path, rest: bytes, count_rows: Callable[[Path], int]
) -> None:
    path = tmp_path / "metrics.jsonl"
    assert count_rows(path) == 0
    path.write_bytes(ROW + rest)
    assert count_rows(path) == 1


def test_rows_that_a_resumed_run_supersedes_were_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.step({"step": 1})
        writer.step({"step": 2})
        writer.resumed(1)
        writer.step({"step": 2})
    assert [row["step"] for row in written_rows(path) if row["kind"] == "step"] == [1, 2, 2]
    path.write_bytes(b"no row\n")
    with pytest.raises(InputError, match="metrics.jsonl:1 is not a row"):
        written_rows(path)
