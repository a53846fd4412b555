"""Two models of one vocabulary, and of two: a teacher that reads other tokens is refused with what "
"differs."""

import json
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.model.side_models import check_same_tokens


def write(folder: Path, vocabulary: dict[str, int] | list[list[object]], added: dict[str, int]) -> Path:
    folder.mkdir()
    tokens = [{"id": number, "content": token} for token, number in added.items()]
    raw = {"model": {"vocab": vocabulary}, "added_tokens": tokens}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    return folder


def test_the_same_ids_pass_wherever_the_tokenizer_says_them(tmp_path: Path) -> None:
    own = write(tmp_path / "own", {"a": 0, "b": 1}, {"<eos>": 2})
    pieces = write(tmp_path / "pieces", [["a", -1.0], ["b", -2.0], ["<eos>", 0.0]], {"<eos>": 2})
    check_same_tokens(own, own, "teacher.path")
    check_same_tokens(own, pieces, "teacher.path")


def test_another_vocabulary_is_refused_with_the_entries_that_differ(tmp_path: Path) -> None:
    own = write(tmp_path / "own", {"a": 0, "b": 1, "c": 3, "d": 4}, {"<eos>": 2})
    other = write(tmp_path / "other", {"a": 0, "x": 1, "d": 3}, {"<eos>": 2, "<pad>": 5})
    wanted = (
        r"teacher.path is .*other, whose tokenizer differs from that of model.path \(.*own\) in 4 of 6 token "
        r"ids: 1 is 'b' and 'x'; 3 is 'c' and 'd'; 4 is 'd' and none; and 1 more. Name a model"
    )
    with pytest.raises(InputError, match=wanted):
        check_same_tokens(own, other, "teacher.path")


@pytest.mark.parametrize("text", [None, "[]", '{"model": {}}', "not json"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, text: str | None) -> None:
    own = write(tmp_path / "own", {"a": 0}, {})
    (tmp_path / "other").mkdir()
    if text is not None:
        (tmp_path / "other/tokenizer.json").write_text(text)
    with pytest.raises(InputError, match=r"other/tokenizer.json cannot be read as a tokenizer"):
        check_same_tokens(own, tmp_path / "other", "teacher.path")
