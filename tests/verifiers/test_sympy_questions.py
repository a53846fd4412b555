"""What is not put to sympy, which has no budget of its own."""

import pytest

from verifiers.math import algebra
from verifiers.math.parser import parse_answer
from verifiers.math.verifier import MathVerifier
from verifiers.verdict import Outcome


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What reaches sympy's own proof."""
    found: list[object] = []

    def note(difference: object) -> bool:
        found.append(difference)
        return False

    monkeypatch.setattr(algebra, "_is_zero", note)
    return found


@pytest.mark.parametrize("depth", [3, 14])
def test_a_plain_number_is_not_proved_equal_to_an_answer_with_letters(
    asked: list[object], depth: int
) -> None:
    verifier = MathVerifier()
    response = r"\boxed{x-1" + r"\log" * depth + "4}"
    assert verifier.verify(response, verifier.parse_reference("22")).outcome is Outcome.WRONG
    assert not asked


@pytest.mark.parametrize(("depth", "num_asked"), [(2, 1), (14, 0)])
def test_functions_inside_functions_are_put_to_sympy_up_to_a_depth(
    asked: list[object], depth: int, num_asked: int
) -> None:
    left, right = (parse_answer(r"\ln" * depth + end) for end in (" x", " (x+0)"))
    assert algebra.proves_equal(left, right) is False
    assert len(asked) == num_asked
