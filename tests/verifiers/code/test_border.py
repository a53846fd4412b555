"""What a program sends back is bounded and storable, whoever asked for the verdict."""

import pytest

from verifiers.code import values
from verifiers.verdict import Outcome


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
