"""Only formulas reach a scorer that evaluates what it is given."""

import pytest

from verifiers.gym.expressions import is_plain_formula


@pytest.mark.parametrize(
    "text",
    ["(25 + 7)*3 - 4/2", "5*x**3/2 + C", "exp(2*x)*sin(x) + C", "x^2 + 3.5e-2*y", "5!", "", "pi*sqrt(2)"],
)
def test_a_formula_is_plain(text: str):
    assert is_plain_formula(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "eval(chr(49))",
        "setattr(x, y, 1)",
        "sympify(1)",
        "(1).real",
        "x.y",
        "[1, 2]",
        "'a'",
        "lambda: 1",
        "lambda x",
        "x if y else z",
        "{1: 2}",
        "x := 1",
        'f"{x}"',
        "1;2",
        "x = 5",
        "ｅval(1)",
        "\\frac{1}{2}",
        "print(1)",
        "_",
        "x@y",
    ],
)
def test_anything_else_is_not(text: str):
    assert not is_plain_formula(text)


def test_a_long_text_is_read_in_linear_time():
    assert is_plain_formula("1+" * 200_000 + "1")
    assert not is_plain_formula("9" * 400_000 + "'")
