"""What a scorer reads is what the dataset made, through JSON and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.gym.entries import read_entry, written_entry

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.just("$tuple")
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.sets(st.integers())
        | st.frozensets(st.text())
    ),
    max_leaves=12,
)


@given(VALUES)
def test_plain_data_comes_back_with_its_types(value: object):
    entry = {"question": "?", "answer": None, "metadata": value}
    found = read_entry(json.dumps(written_entry(entry)))
    # repr tells True from 1 and a tuple from a list; sets have no order of their own.
    assert found == entry
    if "set(" not in repr(entry) and "{" not in repr(value):
        assert repr(found) == repr(entry)


def test_numbers_as_keys_and_tuples_come_back():
    metadata = {3: (1, 2), "edges": [(0, 1)], "$items": {"a": {1.5: True}}}
    entry = {"question": "?", "answer": "1", "metadata": metadata}
    assert repr(read_entry(json.dumps(written_entry(entry)))) == repr(entry)


def test_numbers_and_texts_of_numpy_become_plain_ones():
    numpy = pytest.importorskip("numpy")
    entry = {"question": "?", "answer": numpy.str_("a"), "metadata": {"x": numpy.float64(0.5)}}
    found = read_entry(json.dumps(written_entry(entry)))
    assert (type(found["answer"]), type(found["metadata"]["x"])) == (str, float)
    assert found == entry


def test_any_other_object_is_refused_by_its_type():
    with pytest.raises(ValueError, match="a complex is not plain data: '2j'"):
        written_entry({"question": "?", "answer": "", "metadata": {"x": 2j}})


def test_what_is_no_entry_is_refused():
    with pytest.raises(ValueError, match="expected an object with question, answer and metadata"):
        read_entry('{"question": "?"}')
