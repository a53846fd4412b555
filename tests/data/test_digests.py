"""Whether data changed between two starts is seen for every source."""

import hashlib
from pathlib import Path

import pytest

from asyncrl.data.digests import digest_of
from asyncrl.errors import InputError
from asyncrl.recipe import Source


def test_a_file_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"data\.train names .*none\.jsonl, which cannot be read"):
        digest_of([Source(path=str(tmp_path / "none.jsonl"))], "data.train")


def test_every_file_of_every_source_counts(tmp_path: Path):
    folder = tmp_path / "folder" / "main"
    folder.mkdir(parents=True)
    files = [tmp_path / "a.jsonl", folder / "train.jsonl", tmp_path / "own.py"]
    for file in files:
        file.write_text("{}")
    sources = [
        Source(path=str(files[0]), columns=f"{files[2]}:to_row"),
        Source(path=str(tmp_path / "folder")),
    ]
    seen = {digest_of(sources, "data.train")}
    for number, file in enumerate(files, start=2):
        file.write_text(f"{number}")
        seen.add(digest_of(sources, "data.train"))
        assert len(seen) == number, file
    files[1].rename(folder / "test.jsonl")
    assert digest_of(sources, "data.train") not in seen


def test_a_file_that_did_not_change_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read = []
    digest = hashlib.file_digest

    def noted(stream, name):
        read.append(stream.name)
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    path = tmp_path / "a.jsonl"
    for content, times in (("{}", 1), ("{ }", 2)):
        path.write_text(content)
        for _ in range(3):
            assert digest_of([Source(path=str(path))], "x") == hashlib.sha256(content.encode()).hexdigest()
        assert read == [str(path)] * times


def test_only_the_named_folder_of_a_folder_counts(tmp_path: Path):
    for name in ("easy", "hard"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text("{}")
    hard = [Source(path=str(tmp_path), folder="hard")]
    before = digest_of(hard, "data.train")
    (tmp_path / "easy" / "train.jsonl").write_text("1")
    assert digest_of(hard, "data.train") == before
    (tmp_path / "hard" / "train.jsonl").write_text("1")
    assert digest_of(hard, "data.train") != before


def test_a_hub_id_counts_by_its_commit(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def fetched(hub_id: str, **options: object) -> str:
        asked.append((hub_id, options["revision"], options["repo_type"]))
        return "/cache/snapshots/c0ffee"

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    assert digest_of([Source(path="tiny/rows", revision="v1")], "data.train") == "c0ffee"
    assert asked == [("tiny/rows", "v1", "dataset")]
