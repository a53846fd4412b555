"""Exact arithmetic that no expression can make expensive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.turns.tools.calculator import calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * (3 + 4)", "84"),
        ("-7 // 2", "-4"),
        ("1/3 + 1/6", "0.5"),
        ("0.1 + 0.2", "0.3"),
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("123456789 * 987654321", "121932631112635269"),
    ],
)
def test_expressions_are_worked_out_exactly(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression", ["9**9**9", "10**4000", "1/0", "__import__('os')", "a", "", "1 +", "True", "1j", "(" * 5000]
)
def test_anything_else_is_refused_at_once(expression: str) -> None:
    with pytest.raises(ValueError):
        calculator(expression)


@given(st.text(alphabet="0123456789.+-*/%() e", max_size=60))
def test_no_text_raises_anything_but_a_sentence(text: str) -> None:
    try:
        assert isinstance(calculator(text), str)
    except ValueError as error:
        assert str(error)
