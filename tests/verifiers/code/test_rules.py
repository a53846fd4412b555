"""The pure rules: comparing output, reading programs from responses, and values across the border."""
# Tables of one-line programs read best unbroken.
# ruff: noqa: E501

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers import code_values
from verifiers.code_compare import same_output
from verifiers.code_extract import extract_program
from verifiers.code_match import same_value


@pytest.mark.parametrize(("expected", "actual", "whitespace", "same"), [
    ("1 2\n3", "1 2\n3\n", "lines", True),
    ("1 2\n3", "1  2 \r\n\r\n3  \n\n", "lines", True),
    ("1 2\n3", "1\n2\n3", "lines", False),
    ("1 2\n3", "1\n2\n3", "tokens", True),
    ("1 2\n3", "1  2\n3", "exact", False),
    ("1 2\n3", "1 2\n3\n", "exact", True),
    ("1", "", "lines", False),
    ("", "\n\n", "lines", True),
    ("1", "1 1", "lines", False),
    ("0.5", "0.5000000001", "lines", True),
    ("0.5", "5e-1", "lines", True),
    ("0.5", "0.51", "lines", False),
    ("5", "5.0", "lines", False),
    ("5", "5.0000001", "lines", False),
    ("1.0", "1", "lines", True),
    ("0.5", "nan", "lines", False),
    ("0.5", "inf", "lines", False),
    ("1e400", "2e400", "lines", False),
    ("YES", "yes", "lines", False),
    ("größe", "größe", "lines", True),
    ("1000000.5", "1000000.0", "lines", True),
    ("0.0", "1e-9", "lines", True),
])  # fmt: skip
def test_output_is_compared_by_lines_of_tokens(expected, actual, whitespace, same):
    assert same_output(expected, actual.encode(), whitespace=whitespace) == same


def test_bytes_that_are_no_text_equal_nothing():
    assert not same_output("x", b"\xff")


def test_without_a_tolerance_decimals_are_tokens_like_others():
    assert not same_output("0.5", b"0.50", tolerance=0)


def test_nan_equals_nothing():
    nan, inf, negative = (code_values.encode(x) for x in (math.nan, math.inf, -math.inf))
    assert not same_value(nan, nan)
    assert not same_value(["l", [nan]], ["l", [nan]])
    assert same_value(inf, inf) and not same_value(inf, negative)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False)
    | st.builds(range, st.integers(-9, 9)),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    | st.sets(st.integers() | st.text()),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN)
def test_plain_values_survive_the_border_with_their_types(value):
    import json

    back = code_values.decode(code_values.loads(json.dumps(code_values.encode(value)).encode()))
    assert back == value
    assert repr(type(back)) == repr(type(value))


@given(PLAIN)
def test_a_value_is_the_same_as_itself(value):
    assert same_value(code_values.encode(value), code_values.encode(value))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)  # fmt: skip


@given(
    JSON
    | st.lists(
        st.sampled_from(["l", "d", "i", "f", "S", "r", "q", "D", "b", "o", [], ["i", "z"], 5]), max_size=4
    )
)
def test_whatever_comes_back_is_decoded_or_refused(form):
    try:
        code_values.decode(form)
    except code_values.NotPlain:
        pass


@given(st.binary())
def test_whatever_line_comes_back_is_read_or_refused(line):
    try:
        code_values.loads(line)
    except code_values.NotPlain:
        pass


@pytest.mark.parametrize("value", [object(), lambda: 1, [object()], type])
def test_what_is_no_data_does_not_cross(value):
    with pytest.raises(code_values.NotPlain):
        code_values.encode(value)


def test_an_absurd_integer_does_not_cross():
    with pytest.raises(code_values.NotPlain, match="bits"):
        code_values.encode(1 << (1 << 25))


def test_subclasses_cross_as_their_plain_base():
    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    back = code_values.decode(code_values.encode([Always(5), Fraction(1, 2), Decimal("1.50")]))
    assert type(back[0]) is int and back[0] == 5 and back[1:] == [Fraction(1, 2), Decimal("1.50")]


@pytest.mark.parametrize(("response", "program"), [
    ("```python\nx = 1\n```", "x = 1\n"),
    ("text\n```py\na\n```\nmore\n```python\nb\n```\nOutput:\n```\n3\n```", "b\n"),
    ("```\nx = 1\n```\nprints\n```\n1 2 oops\n```", "x = 1\n"),
    ("```text\nnot this\n```\n~~~python\nx\n~~~", "x\n"),
    ("x = 1", "x = 1"),
    ("<think>```python\nbad\n```</think>```python\ngood\n```", "good\n"),
    ("<think>unfinished ```python\nbad\n```", None),
    ("```python\nx = 1", "x = 1"),
    ("```python\nx = 1\n```\n```python\ncut", "x = 1\n"),
    ("````python\n```\ninner\n```\n````", "```\ninner\n```\n"),
    ("1. First:\n   ```python\n   x = 1\n   ```", "   x = 1\n"),
    ("``` python\nx\n```", "x\n"),
    ("", None),
    ("```\n```", None),
])  # fmt: skip
def test_the_program_is_the_last_block_of_its_language(response, program):
    found = extract_program(response, "python")
    assert (found.strip() if found else found) == (program.strip() if program else program)


@given(st.text())
def test_any_text_is_read(text):
    for lang in ("python", "cpp"):
        found = extract_program(text, lang)
        assert found is None or found in text
