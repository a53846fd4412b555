"""A verdict does not depend on what the same verifier graded before."""

import itertools

import pytest

from verifiers.math.verifier import MathVerifier

GRADED = [
    ("42", r"\boxed{42, \frac{84}{2}}", "wrong"),
    ("42", r"$\boxed{42}$, $\boxed{\frac{84}{2}}$", "correct"),
    (r"\text{(C)} 42", r"\boxed{C}", "correct"),
    ("42", r"\boxed{C}", "wrong"),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(GRADED)), 2)))
def test_an_earlier_response_does_not_change_a_verdict(order: tuple[int, int]) -> None:
    verifier = MathVerifier()
    for gold, response, expected in (GRADED[number] for number in order):
        reference = verifier.parse_reference(gold)
        assert verifier.verify(response, reference).outcome.value == expected, (gold, response)
        quick = verifier.verify_fast(response, reference)
        assert quick is not None and quick.outcome.value == expected, (gold, response)


def test_cache_keys_differ_where_verdicts_may() -> None:
    verifier = MathVerifier()
    keys = {verifier.cache_key(response, verifier.parse_reference(gold)) for gold, response, _ in GRADED}
    assert len(keys) == len(GRADED)
