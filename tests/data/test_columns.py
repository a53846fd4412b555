"""Rows as they are published become rows of asyncrl."""

from typing import Any

import pyarrow
import pytest

from asyncrl.data.columns import READY, Columns, NoAnswer, column, names_read, to_row
from asyncrl.errors import InputError


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("asyncrl", {"prompt": "p", "answer": 4}, {"prompt": "p", "answer": 4}),
        (
            "asyncrl",
            {"prompt": "p", "answer": 4, "verifier": "exact"},
            {"prompt": "p", "answer": 4, "verifier": "exact"},
        ),
        (
            "verl",
            {"prompt": [{"role": "user", "content": "p"}], "reward_model": {"ground_truth": "34"}},
            {"prompt": [{"role": "user", "content": "p"}], "answer": "34"},
        ),
        ("gsm8k", {"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 2"}, {"prompt": "q", "answer": "2"}),
        (
            "gsm8k",
            {"question": "q", "answer": "#### not this\n#### 1,200 "},
            {"prompt": "q", "answer": "1,200"},
        ),
        ("math", {"problem": "p", "answer": "x", "solution": "s"}, {"prompt": "p", "answer": "x"}),
        (
            "math_solution",
            {"problem": "p", "solution": r"First \boxed{1}, so \boxed{\frac{1}{2}}."},
            {"prompt": "p", "answer": r"\frac{1}{2}"},
        ),
        ("question_final_answer", {"question": "q", "final_answer": ["2"]}, {"prompt": "q", "answer": "2"}),
        (
            "countdown",
            {"target": 24, "nums": [1, 2, 3, 4]},
            {
                "prompt": "Using the numbers [1, 2, 3, 4], create an equation that equals 24. You can use "
                "basic arithmetic operations (+, -, *, /) and each number can only be used once. Show your "
                "work in <think> </think> tags. And return the final answer in <answer> </answer> tags, for "
                "example <answer> (1 + 2) / 3 </answer>.",
                "answer": {"target": 24, "numbers": [1, 2, 3, 4]},
                "verifier": "countdown",
            },
        ),
        (
            "svamp",
            {"Body": "There are 87 oranges. ", "Question": "How many?", "Answer": 145.0},
            {"prompt": "There are 87 oranges. How many?", "answer": 145.0},
        ),
    ],
)
def test_ready_columns_give_prompt_and_answer(name: str, row: dict, expected: dict):
    assert to_row(READY[name], row, "here") == expected


def test_a_mapping_of_ones_own_reaches_into_columns():
    mapping = Columns("a.b", "c.1.d", verifier="exact")
    row = {"a": {"b": "p"}, "c": [0, {"d": "yes"}], "verifier": "not asked"}
    assert mapping(row) == {"prompt": "p", "answer": "yes", "verifier": "exact"}
    assert column(row, "c.0") == 0


@pytest.mark.parametrize(
    ("name", "row", "sentence"),
    [
        ("gsm8k", {"problem": "p"}, 'here: no "question"; the row has problem'),
        ("verl", {"prompt": "p", "reward_model": {}}, 'no "reward_model.ground_truth"'),
        ("gsm8k", {"question": "q", "answer": "2"}, "\"answer\" has no '####' in front of an answer"),
        ("math_solution", {"problem": "p", "solution": "so 2"}, "holds an answer"),
        ("question_final_answer", {"question": "q", "final_answer": []}, 'no "final_answer.0"'),
    ],
)
def test_a_row_without_its_columns_is_refused_with_those_it_has(name: str, row: dict, sentence: str):
    with pytest.raises(InputError) as refused:
        to_row(READY[name], row, "here")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("row", "advice"),
    [
        ({"question": "q", "answer": "1\n#### 2"}, "Its columns are those of gsm8k or question_answer: set"),
        ({"promt": "p", "answer": "2"}, 'Did you mean "prompt" where it says "promt"?'),
        ({"prompt": "p", "answer": "2", "verifer": "code"}, 'Did you mean "verifier"'),
        ({"text": "p"}, "Name its columns in `columns` of the source; ready ones: asyncrl, verl"),
    ],
)
def test_a_refused_row_says_which_columns_would_fit(row: dict, advice: str):
    with pytest.raises(InputError) as refused:
        to_row(READY["asyncrl"], row, "here")
    assert advice in str(refused.value)


def test_a_row_without_an_answer_is_told_from_one_without_the_column():
    for row, is_broken in (({"question": "q", "answer": "2"}, True), ({"question": "q"}, False)):
        with pytest.raises(InputError) as refused:
            to_row(READY["gsm8k"], row, "here")
        assert isinstance(refused.value, NoAnswer) is is_broken


@pytest.mark.parametrize(
    ("name", "row", "column_name"),
    [
        ("svamp", {"Body": float("nan"), "Question": "q", "Answer": 2.0}, "Body"),
        ("svamp", {"Body": "b", "Question": None, "Answer": 2.0}, "Question"),
        ("mbpp", {"text": float("nan"), "code": "c", "test_list": ["assert f()"]}, "text"),
        (
            "humaneval",
            {"prompt": None, "entry_point": "f", "test": "t", "canonical_solution": "s"},
            "prompt",
        ),
    ],
)
def test_a_prompt_is_made_of_text_alone(name: str, row: dict, column_name: str):
    with pytest.raises(InputError, match=f'rows:1: "{column_name}" is (nan|null), expected text'):
        to_row(READY[name], row, "rows:1")


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
