"""A gold that says "there is no value" is refused before any verifier reads it."""

import math
from decimal import Decimal
from typing import Any

import numpy
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.golds import MISSING_WORDS, missing, parse_gold
from verifiers.pool import VerifierPool
from verifiers.registry import load_verifier
from verifiers.verdict import Outcome, Verdict

NO_NUMBERS = [math.nan, math.inf, -math.inf]
MISSING = [
    None,
    *NO_NUMBERS,
    *map(numpy.float32, NO_NUMBERS),
    *map(Decimal, NO_NUMBERS),
    *(Decimal("sNaN"), pandas.NA, pandas.NaT, numpy.datetime64("NaT"), complex(0, math.nan)),
    *("", " \n\t ", "\u00a0", "\u200b\ufeff", "\x00", " nan\n", "He has no apples.\n#### nan"),
    *sorted(MISSING_WORDS),
]
HONEST = [
    *("none", "undefined", "Undefined", "no solution", "infinity", "\\infty", "-\\infty", "\\text{None}"),
    *("Nancy", "a null set", "0", 0, 0.0),
]


class Anything:
    """A verifier of one's own that takes whatever it is given."""

    def parse_reference(self, raw: object) -> Any:
        return raw

    def verify(self, response: str, reference: Any) -> Verdict:
        return Verdict(Outcome.WRONG, 0.0)


@pytest.mark.parametrize("gold", MISSING, ids=repr)
def test_each_spelling_of_missing_is_refused_for_every_verifier(gold: object) -> None:
    with pytest.raises(ValueError, match="The gold"):
        parse_gold(Anything(), gold)
    for name in ("math", "exact", "numeric", "choice", "countdown", "json_schema", "code", "remote"):
        verifier = load_verifier(name, {"url": "http://127.0.0.1"} if name == "remote" else {})
        with pytest.raises(ValueError):
            parse_gold(verifier, gold)
    for name in ("math", "exact", "numeric", "choice"):
        # Also used alone, without the pool.
        with pytest.raises(ValueError):
            load_verifier(name).parse_reference(gold)


@pytest.mark.parametrize("gold", HONEST, ids=repr)
def test_what_a_person_writes_as_an_answer_is_none_of_them(gold: object) -> None:
    assert missing(gold) is None


def test_a_number_without_a_text_is_no_missing_one() -> None:
    # Python refuses to convert an integer of this many digits to text.
    assert missing(10**5000) is None


@pytest.mark.parametrize("word", sorted(MISSING_WORDS))
def test_a_list_says_that_the_word_is_meant(word: str) -> None:
    exact = load_verifier("exact")
    verdict = exact.verify(word, parse_gold(exact, [word]))
    assert verdict.outcome is Outcome.CORRECT


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN, st.sampled_from([*NO_NUMBERS, pandas.NA, pandas.NaT, numpy.float64("nan")]), st.data())
def test_no_depth_hides_a_number_that_is_none(plain: Any, hidden: object, data: st.DataObject) -> None:
    if isinstance(plain, (list, dict)):
        assert missing(plain) is None
    value: Any = [hidden]
    for _ in range(data.draw(st.integers(0, 4))):
        value = data.draw(
            st.sampled_from(
                [[plain, value], {"a": plain, "b": value}, (value,), numpy.array([1.0, math.nan])]
            )
        )
    assert "which is not a value" in (missing(value) or "")


async def test_the_pool_and_the_parts_of_a_weighted_verifier_ask_as_well() -> None:
    parts = [{"name": "math", "field": "answer"}, {"name": "length", "options": {"max_length": 9}}]
    async with VerifierPool() as pool:
        with pytest.raises(ValueError, match="The gold is missing: it is nan"):
            pool.parse_reference("weighted", {"parts": parts}, {"answer": math.nan})
        pool.parse_reference("weighted", {"parts": parts}, {"answer": "7"})
        for name, options in (("format", {}), ("length", {"max_length": 9})):
            # These read no gold.
            pool.parse_reference(name, options, None)


def test_verifiers_that_send_a_gold_refuse_what_json_cannot_hold_in_the_same_words() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    options = {"url": "http://127.0.0.1:9/v1"}
    for gold in (object(), {"a": math.nan}, b"42", deep):
        said = set()
        for name, more in (("remote", {}), ("judge", {"model": "m"})):
            with pytest.raises(ValueError, match="expected something that JSON can hold") as error:
                load_verifier(name, {**options, **more}).parse_reference(gold)
            said.add(str(error.value))
        assert len(said) == 1
