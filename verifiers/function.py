"""A verifier made of a plain function `(response, reference) -> bool | float | Verdict | None`.

    def is_parity(response, reference):
        return response.strip() == reference

    Parity = from_function(is_parity)

It runs as any verifier of the user's does: in a worker that is killed when it is late, and what it raises is
a fault. A third parameter `task` is told the task (`verifiers.task`). The reference is the row's value as it
is; where the parameter has a default, a row needs no value.
"""

import inspect
from collections.abc import Callable
from typing import Any

from verifiers.task import Task
from verifiers.verdict import Outcome, Verdict
from verifiers.verifier import Verifier

Graded = bool | float | Verdict | None


def from_function(function: Callable[..., Graded], *, correct_at: float = 1.0) -> type[Verifier]:
    """A verifier class. `correct_at`: the least score, above 0 and at most 1, that counts as correct. Raises
    ValueError for it, and TypeError for a function that takes something else than a response and a
    reference."""
    if not 0.0 < correct_at <= 1.0:
        raise ValueError(f"correct_at is {correct_at!r}, expected more than 0 and at most 1.")
    given = check_function(function)

    class FromFunction:
        takes_any_gold = given[1].default is not inspect.Parameter.empty

        def parse_reference(self, raw: object) -> Any:
            return raw

    if len(given) > 2:

        class Told(FromFunction):
            def verify(self, response: str, reference: Any, task: Task) -> Verdict:
                return verdict_of(function(response, reference, task=task), correct_at)

        return _of_module(Told, function)

    class Alone(FromFunction):
        def verify(self, response: str, reference: Any) -> Verdict:
            return verdict_of(function(response, reference), correct_at)

    return _of_module(Alone, function)


def _of_module(made: type[Any], function: Callable[..., object]) -> type[Verifier]:
    # By its module a verifier is known as one of ours, whose code is trusted not to hang.
    made.__module__ = function.__module__
    made.__qualname__ = made.__name__ = function.__name__
    return made


def check_function(function: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters of a function that can be a verifier: response, reference, and perhaps task. Raises
    TypeError with a sentence for another one."""
    name = getattr(function, "__name__", repr(function))
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is async: a verifier that waits is a class with verify_async.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} yields, expected a function that returns one verdict for each response.")
    parameters = list(inspect.signature(function).parameters.values())
    positional = [found for found in parameters[:2] if found.kind in _POSITIONAL]
    others = parameters[2:]
    is_known = all(found.name == "task" or found.default is not inspect.Parameter.empty for found in others)
    if len(positional) < 2 or not is_known:
        shown = ", ".join(found.name for found in parameters)
        raise TypeError(
            f"{name} takes ({shown}), expected (response, reference) or (response, reference, task)."
        )
    return [*positional, *(found for found in others if found.name == "task")]


def verdict_of(graded: object, correct_at: float = 1.0) -> Verdict:
    """The verdict of what a function returned: True and False, a score within 0 and 1, None where there was
    no answer, or a verdict. Raises TypeError or ValueError for anything else, which makes it a fault."""
    match graded:
        case Verdict():
            return graded
        case None:
            return Verdict(Outcome.NO_ANSWER, 0.0)
        case bool():
            return Verdict(Outcome.CORRECT if graded else Outcome.WRONG, float(graded))
    try:
        score = float(graded)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(
            f"the function returned {graded!r}, expected True, False, a score within 0 and 1, None or a "
            f"Verdict."
        ) from None
    return Verdict(Outcome.CORRECT if score >= correct_at else Outcome.WRONG, score)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
