"""Only the columns that a mapping reads are read of a table."""

from typing import Any

import pyarrow
import pytest

from asyncrl.data.columnar import names_read
from asyncrl.data.columns import READY, Columns


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


def test_an_environment_and_what_may_be_a_slip_for_a_verifier_are_read_too() -> None:
    assert names_read(READY["asyncrl"], schema(prompt="", answer="", environment="e", x=1)) == [
        "prompt", "answer", "environment",
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


def test_all_columns_are_read_where_rows_name_verifiers_which_may_take_them() -> None:
    named = schema(prompt="", answer="", verifier="math", x=1)
    assert names_read(READY["asyncrl"], named) == ["prompt", "answer", "verifier", "x"]
    assert "x" not in names_read(Columns("prompt", "answer", verifier="math"), named)


def test_a_function_gets_all_columns() -> None:
    assert names_read(lambda row: dict(row), schema(**VERL)) == list(VERL)
