"""Rows packed in bytes come back as they were; where they are many, also in the next start, from a file."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from asyncrl.data.rows import Row
from asyncrl.errors import InputError
from asyncrl.records import VerifierSpec
from asyncrl.tasks import packed_rows as packed
from asyncrl.tasks.packed_rows import Findings, PackedTasks, Packer, load_packed

MATH, CODE = VerifierSpec("math"), VerifierSpec("code", {"fresh": True})


def row(number: int, answer: Any = "2", *, label: str = "train", spec: VerifierSpec = MATH) -> Row:
    return Row(f"{label}.jsonl:{number}", f"{label}:{number}", 0, "not rendered", answer, spec)


def pack(packer: Packer, rows: list[Row]) -> None:
    for one in rows:
        packer.add(one, f"prompt {one.row_id}", True, str(one.verifier))


def seen(found: PackedTasks) -> list[tuple[str, str, Any, VerifierSpec]]:
    rows = [found.row(index) for index in range(len(found))]
    return [(one.task_id, one.text, one.answer, one.verifier) for one in rows]


ROWS = [row(1), row(3, {"tests": ["assert f(1)"]}, spec=CODE), row(4, 2.5), row(1, ("a", 1), label="more")]
SEEN = [(one.row_id, f"prompt {one.row_id}", one.answer, one.verifier) for one in ROWS]


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    packer = Packer(tmp_path / "cache")
    pack(packer, ROWS)
    found = packer.finish(Findings(num_rows=4), "name")
    assert seen(found) == SEEN
    assert found.examples == [(0, "train.jsonl:1"), (1, "train.jsonl:3")]
    # So few bytes are no file.
    assert not (tmp_path / "cache").exists()


def test_an_answer_of_any_kind_comes_back(tmp_path: Path) -> None:
    packer = Packer(tmp_path)
    pack(packer, [row(1, date(2026, 1, 2)), row(2)])
    assert [answer for _, _, answer, _ in seen(packer.finish(Findings(), None))] == [date(2026, 1, 2), "2"]


@pytest.fixture
def spills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "SPILL_BYTES", 60)


@pytest.mark.usefixtures("spills")
def test_many_rows_are_a_file_that_the_next_start_finds(tmp_path: Path) -> None:
    findings = Findings(9, {0: 3, 1: 1}, {"repeated": 5}, {"repeated": "train.jsonl:2"}, 1, "train.jsonl:4")
    packer = Packer(tmp_path)
    pack(packer, ROWS)
    assert seen(packer.finish(findings, "name")) == SEEN
    again = load_packed(tmp_path / "name")
    assert again is not None
    assert (seen(again), again.findings) == (SEEN, findings)
    assert [(spec.name, spec.options) for spec in again.specs] == [("math", {}), ("code", {"fresh": True})]
    assert load_packed(tmp_path / "other") is None
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_few_rows_of_many_that_were_read_are_a_file_too(tmp_path: Path) -> None:
    for num_rows, is_kept in ((packed.KEPT_ROWS - 1, False), (packed.KEPT_ROWS, True)):
        packer = Packer(tmp_path)
        pack(packer, ROWS)
        assert seen(packer.finish(Findings(num_rows=num_rows), "name")) == SEEN
        again = load_packed(tmp_path / "name")
        assert (again is not None) is is_kept
    assert again is not None and seen(again) == SEEN


def test_a_cache_that_cannot_be_written_keeps_few_rows_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    packer = Packer(tmp_path / "file")
    pack(packer, ROWS)
    assert seen(packer.finish(Findings(num_rows=packed.KEPT_ROWS), "name")) == SEEN
    assert "not kept for the next start" in caplog.text


@pytest.mark.usefixtures("spills")
@pytest.mark.parametrize(
    "rows",
    [
        [*ROWS, row(2, date(2026, 1, 2), label="more")],
        [*ROWS, row(2, label="more", spec=VerifierSpec("./own.py:V"))],
    ],
    ids=["an answer that only this process has", "a verifier of one's own"],
)
def test_what_the_next_start_could_not_know_is_not_kept(tmp_path: Path, rows: list[Row]) -> None:
    packer = Packer(tmp_path)
    pack(packer, rows)
    found = packer.finish(Findings(), "name")
    assert [one[0] for one in seen(found)] == [one.row_id for one in rows]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("spills")
def test_reading_that_fails_leaves_no_file(tmp_path: Path) -> None:
    packer = Packer(tmp_path)
    pack(packer, ROWS)
    assert len(list(tmp_path.iterdir())) == 1
    packer.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("spills")
def test_only_the_tables_used_last_are_kept(tmp_path: Path) -> None:
    for number in range(packed.KEPT_TABLES + 2):
        packer = Packer(tmp_path)
        pack(packer, ROWS)
        packer.finish(Findings(), f"name{number}")
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == packed.KEPT_TABLES and f"name{packed.KEPT_TABLES + 1}" in kept


@pytest.mark.usefixtures("spills")
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"could not be written to .*file.*XDG_CACHE_HOME"):
        pack(Packer(tmp_path / "file"), ROWS)


@pytest.mark.usefixtures("spills")
@pytest.mark.parametrize("name", ["rows", "ends", "numbers", "prompt_keys"])
def test_a_table_that_is_not_whole_is_removed_and_made_again(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        packer = Packer(tmp_path)
        pack(packer, ROWS)
        packer.finish(Findings(), "name")
        assert load_packed(tmp_path / "name") is not None
        file = tmp_path / "name" / name
        file.write_bytes(file.read_bytes()[:-8])
        assert load_packed(tmp_path / "name") is None
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("spills")
def test_how_hard_rows_are_is_kept_with_them(tmp_path: Path) -> None:
    packer = Packer(tmp_path)
    for number in range(20):
        packer.add(row(number, "2"), "1+1=", True, "math", level=0.5 * number)
    assert list(packer.finish(Findings(), "name").levels) == [0.5 * number for number in range(20)]
    again = load_packed(tmp_path / "name")
    assert again is not None and list(again.levels) == [0.5 * number for number in range(20)]
