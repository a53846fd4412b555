"""The file of a selection is there as a whole or not at all."""

from pathlib import Path

import pytest
from fakes.small_disk import refused_writes

from asyncrl.errors import DiskError, InputError
from asyncrl.readers.selection.lines import TYPES
from asyncrl.readers.selection.output import Output


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    with (
        refused_writes(from_bytes=1000),
        pytest.raises(DiskError, match=f"{name} could not be written: .* Nothing of it is left."),
        Output(tmp_path / name, TYPES) as output,
    ):
        for number in range(3000):
            output.add({"prompt": f"{number}?", "response": str(number)})
    assert not [*tmp_path.iterdir()]


def test_parquet_refuses_rows_of_two_kinds_in_a_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="a column has values of several kinds"),
        Output(tmp_path / "out.parquet", TYPES) as output,
    ):
        output.add({"prompt": "1+1=", "response": "2"})
        output.add({"prompt": [{"role": "user", "content": "1+1="}], "response": "2"})
    assert not [*tmp_path.iterdir()]


def test_without_lines_the_former_file_stays(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("former")
    with Output(tmp_path / "out.jsonl", TYPES):
        pass
    assert [path.read_text() for path in tmp_path.iterdir()] == ["former"]
