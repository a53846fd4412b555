"""Plain values across the border between a program and its judges."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.code import values
from verifiers.code.compare import same_value
from verifiers.verdict import Outcome

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False)
    | st.builds(range, st.integers(-9, 9)),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.sets(st.integers() | st.text())
    | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN)
@settings(max_examples=40)
def test_plain_values_survive_the_border_with_their_types(value):
    back = values.decode(values.loads(json.dumps(values.encode(value)).encode()))
    assert back == value
    assert repr(type(back)) == repr(type(value))


@given(PLAIN)
@settings(max_examples=40)
def test_a_value_is_the_same_as_itself(value):
    assert same_value(values.encode(value), values.encode(value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(
    JSON
    | st.lists(
        st.sampled_from(["l", "d", "i", "f", "S", "r", "q", "D", "b", "o", [], ["i", "z"], 5]), max_size=4
    )
)
def test_whatever_comes_back_is_decoded_or_refused(form):
    try:
        values.decode(form)
    except values.NotPlain:
        pass


@given(st.binary())
def test_whatever_line_comes_back_is_read_or_refused(line):
    try:
        values.loads(line)
    except values.NotPlain:
        pass


@pytest.mark.parametrize("value", [object(), lambda: 1, [object()], type])
def test_what_is_no_data_does_not_cross(value):
    with pytest.raises(values.NotPlain):
        values.encode(value)


def test_an_absurd_integer_does_not_cross():
    with pytest.raises(values.NotPlain, match="bits"):
        values.encode(1 << (1 << 25))


def test_subclasses_cross_as_their_plain_base():
    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    back = values.decode(values.encode([Always(5), Fraction(1, 2), Decimal("1.50")]))
    assert type(back[0]) is int and back[0] == 5 and back[1:] == [Fraction(1, 2), Decimal("1.50")]


@pytest.mark.parametrize("test", [
    {"call": "f()", "expect": "1"},
    {"assert": "assert 1 == f()"},
])  # fmt: skip
def test_a_verdict_holds_no_lone_surrogates_outside_of_the_pool_either(submit, test):
    verdict = submit("```python\ndef f(): raise ValueError('\\ud800\\x00')  # \ud800\n```", [test]).result()
    assert verdict.outcome is Outcome.WRONG
    verdict.detail.encode()
    verdict.extracted.encode()
    assert "\x00" not in verdict.detail


def test_a_long_decimal_is_refused_unread():
    digits = "7" * 1000
    assert str(values.decode(["D", digits])) == digits
    for text in ("7" * 1101, "0." + "7" * 9000):
        with pytest.raises(values.NotPlain, match=f"a decimal of {len(text)} characters"):
            values.decode(["D", text])


def test_a_right_decimal_of_a_thousand_digits_passes(submit):
    program = "from decimal import Decimal\ndef f(n): return Decimal('0.' + '7' * n)"
    test = {"assert": "from decimal import Decimal\nassert f(1000) == Decimal('0.' + '7' * 1000)"}
    assert submit(f"```python\n{program}\n```", [test]).result().outcome is Outcome.CORRECT
