"""JSON is read as its standard says, not as Python's reader does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.strict_json import flaw_in, loads, loads_with_flaws

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["NaN", "Infinity", "-Infinity", "1e999", '{"a": NaN}']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_json_is_read_as_ever(value: Any) -> None:
    text = json.dumps(value)
    assert loads(text) == json.loads(text)
    assert flaw_in(loads_with_flaws(text)[0]) is None


@pytest.mark.parametrize(
    ("token", "complaint"),
    [
        ("NaN", "NaN is not JSON"),
        ("-Infinity", "-Infinity is not JSON"),
        ("Infinity", "Infinity is not JSON"),
        ("1e400", "the number 1e400 is out of the range of a float"),
        ("-1.5E+999", "out of the range of a float"),
        ("12e-400", "too small for a float"),
        ('{"a": 1, "a": 1}', 'the key "a" stands twice'),
        ('{"b": {}, "\\u0061": 1, "a": 2}', 'the key "a" stands twice'),
        ("[" * 200_000, "nested too deeply"),
        ("9" * 5000, "Exceeds the limit"),
        ("{'a': 1}", "property name"),
    ],
)
@given(around=VALUES)
def test_what_is_no_json_is_refused_wherever_it_stands(token: str, complaint: str, around: Any) -> None:
    text = json.dumps([around, {"x": [around, "HERE"]}]).replace('"HERE"]}]', token + "]}]")
    with pytest.raises(ValueError) as refused:
        loads(text)
    assert complaint in str(refused.value)


def test_zero_is_not_too_small() -> None:
    assert loads("[0.0, -0.0, 0e5, 0.000e-999, 5e-324]") == [0.0, 0.0, 0.0, 0.0, 5e-324]
