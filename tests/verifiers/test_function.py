"""A plain function as a verifier."""

from typing import Any

import pytest

from verifiers.function import from_function
from verifiers.own import is_built_in
from verifiers.task import Task, takes_task
from verifiers.verdict import Outcome, Verdict


def is_same(response: str, reference: Any) -> bool:
    return response == reference


def returns(value: Any) -> Any:
    def function(response: str, reference: Any) -> Any:
        return value

    return from_function(function)().verify("", "")


def test_a_truth_value_is_right_or_wrong() -> None:
    verifier = from_function(is_same)()
    assert verifier.verify("4", verifier.parse_reference("4")) == Verdict(Outcome.CORRECT, 1.0)
    assert verifier.verify("5", "4") == Verdict(Outcome.WRONG, 0.0)


def test_a_score_is_correct_from_a_bound_on() -> None:
    assert returns(0.6) == Verdict(Outcome.WRONG, 0.6)
    assert returns(1) == Verdict(Outcome.CORRECT, 1.0)
    lenient = from_function(lambda response, reference: 0.6, correct_at=0.5)()
    assert lenient.verify("", "") == Verdict(Outcome.CORRECT, 0.6)


def test_none_is_no_answer_and_a_verdict_stays() -> None:
    assert returns(None) == Verdict(Outcome.NO_ANSWER, 0.0)
    own = Verdict(Outcome.WRONG, 0.0, detail="why")
    assert returns(own) is own


@pytest.mark.parametrize("value", ["yes", 1.5, float("nan"), [1]])
def test_anything_else_is_the_functions_mistake(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        returns(value)


def test_a_function_that_names_the_task_is_told_it() -> None:
    def asks(response: str, reference: Any, task: Task) -> bool:
        return task.prompt == "1+1="

    verifier = from_function(asks)()
    assert takes_task(verifier) and not takes_task(from_function(is_same)())
    assert verifier.verify("", "", Task(prompt="1+1=")).score == 1.0  # type: ignore[call-arg]


def test_a_function_whose_reference_has_a_default_needs_no_gold() -> None:
    def is_short(response: str, reference: Any = None) -> bool:
        return len(response) < 5

    assert from_function(is_short).takes_any_gold  # type: ignore[attr-defined]
    assert not from_function(is_same).takes_any_gold  # type: ignore[attr-defined]


def test_its_code_is_not_taken_for_ours() -> None:
    # Ours runs in the controller's event loop, where a function that hangs would stop the run.
    assert not is_built_in(from_function(is_same)())


async def waits(response: str, reference: Any) -> bool:
    return True


def test_other_signatures_are_refused_with_the_expected_one() -> None:
    with pytest.raises(TypeError, match=r"expected \(response, reference\)"):
        from_function(lambda response: True)
    with pytest.raises(TypeError, match=r"takes \(response, reference, other\)"):
        from_function(lambda response, reference, other: True)
    with pytest.raises(TypeError, match="async"):
        from_function(waits)
    with pytest.raises(ValueError, match="correct_at is 0"):
        from_function(is_same, correct_at=0)
