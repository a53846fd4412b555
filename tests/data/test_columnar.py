"""Arrow's columns become the objects that pyarrow makes of them; only columns that are read are made."""

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow
import pytest

from asyncrl.data.columnar import names_read, rows_of_batch, to_objects
from asyncrl.data.columns import READY, Columns

CHAT = [[{"role": "user", "content": "1+1"}], None, [], [{"role": "system", "content": None}, None]]
COLUMNS: dict[str, list[Any]] = {
    "text": ["a", None, "", "é\u2028"],
    "chat": CHAT,
    "whole": [1, 2, -3, 2**60],
    "whole or none": [1, None, 3, 2**60],
    "parts": [0.5, 1e300, -0.0, 3.0],
    "flags": [True, False, True, False],
    "flags or none": [True, None, True, False],
    "nothing": [None, None, None, None],
    "nested": [{"a": {"b": [[1], []]}, "c": None}, {"a": None, "c": 1.5}, None, {"a": {"b": None}, "c": 2.0}],
    "dates": [datetime(2026, 1, 2), None, datetime(1, 1, 1), datetime(2026, 1, 2)],
    "exact": [Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.00")],
    "bytes": [b"a", None, b"", b"\x00"],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_and_a_piece_of_it_give_what_pyarrow_gives(name: str) -> None:
    array = pyarrow.array(COLUMNS[name])
    for piece in (array, array[1:], array[1:3], array[:0], array.take(pyarrow.array([3, 1, 0]))):
        found = to_objects(piece)
        assert found == piece.to_pylist()
        assert list(map(type, found)) == list(map(type, piece.to_pylist()))


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.large_list(pyarrow.large_string()),
        pyarrow.list_(pyarrow.string(), 2),
        pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
    ],
    ids=str,
)
def test_other_layouts_of_lists_give_the_same(kind: pyarrow.DataType) -> None:
    lists = [["a", "b"], None, ["b", None]]
    array = pyarrow.array(lists, kind)
    assert to_objects(array) == to_objects(array[:3]) == lists
    assert to_objects(array[1:]) == lists[1:]


def test_a_struct_with_one_name_twice_or_none_is_left_to_pyarrow() -> None:
    empty = pyarrow.array([{}, None, {}], pyarrow.struct([]))
    assert to_objects(empty) == [{}, None, {}]
    twice = pyarrow.StructArray.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    with pytest.raises(ValueError, match="duplicate"):
        to_objects(twice)


def test_rows_have_the_named_columns() -> None:
    batch = pyarrow.RecordBatch.from_pydict(COLUMNS)
    assert list(rows_of_batch(batch, batch.schema.names)) == batch.to_pylist()
    assert list(rows_of_batch(batch, ["flags"]))[1] == {"flags": False}


def schema(**columns: Any) -> pyarrow.Schema:
    return pyarrow.RecordBatch.from_pylist([columns]).schema


VERL = {
    "data_source": "math",
    "prompt": [{"role": "user", "content": "1+1"}],
    "reward_model": {"ground_truth": "2", "style": "rule"},
    "extra_info": {"index": 1},
}


def test_a_mapping_reads_its_columns_alone() -> None:
    assert names_read(READY["verl"], schema(**VERL)) == ["prompt", "reward_model"]
    assert names_read(Columns("a", "b.0"), schema(a="", b=["1"], c=1)) == ["a", "b"]


def test_a_verifier_and_what_may_be_a_slip_for_it_are_read_too() -> None:
    assert names_read(READY["asyncrl"], schema(prompt="", answer="", verifier="math", x=1)) == [
        "prompt", "answer", "verifier",
    ]  # fmt: skip
    assert "verifer" in names_read(READY["asyncrl"], schema(prompt="", answer="", verifer="math", x=1))


@pytest.mark.parametrize(
    "columns",
    [
        {**VERL, "reward_model": {"truth": "2"}},
        {**VERL, "reward_model": "2"},
        {"question": "1+1", "answer": "2"},
    ],
    ids=str,
)
def test_all_columns_are_read_where_one_is_missing_so_that_the_error_names_them(
    columns: dict[str, Any],
) -> None:
    assert names_read(READY["verl"], schema(**columns)) == list(columns)


def test_a_function_gets_all_columns() -> None:
    assert names_read(lambda row: dict(row), schema(**VERL)) == list(VERL)
