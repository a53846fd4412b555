"""Names to verifiers. Owns the list of built-ins and the four ways to name one; imports a verifier only when
asked for.

A name is a built-in ("math"), "package.module:Name", "./file.py:Name" (from the folder of the recipe or row
file), or an entry point of the group `asyncrl.verifiers`. The named object is called with the options as
keyword arguments; a plain function `(response, reference) -> bool | float | Verdict | None` judges as it is:

    def is_parity(response, reference):
        return response.strip() == reference

    Parity = from_function(is_parity)

It runs as any verifier of the user's does: in a worker that is killed when it is late, and what it raises is
a fault. A third parameter `task` is told the task (`verifiers.task`). The reference is the row's value as it
is; where the parameter has a default, a row needs no value."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from verifiers.judgement import is_group_wise, min_responses
from verifiers.plugins import Plugins, checked
from verifiers.task import Task
from verifiers.verdict import Outcome, Verdict
from verifiers.verifier import Verifier

ENTRY_POINT_GROUP = "asyncrl.verifiers"

BUILT_IN = {
    "math": "verifiers.math.verifier:MathVerifier",
    "exact": "verifiers.exact:ExactVerifier",
    "numeric": "verifiers.numeric:NumericVerifier",
    "regex": "verifiers.exact:RegexVerifier",
    "choice": "verifiers.choice:ChoiceVerifier",
    "countdown": "verifiers.countdown:CountdownVerifier",
    "format": "verifiers.format:FormatVerifier",
    "json_schema": "verifiers.json_schema:JsonSchemaVerifier",
    "length": "verifiers.format:LengthVerifier",
    "remote": "verifiers.remote:RemoteVerifier",
    "judge": "verifiers.judge:JudgeVerifier",
    "group_judge": "verifiers.group_judge:GroupJudge",
    "reward_model": "verifiers.reward_model:RewardModelVerifier",
    "weighted": "verifiers.weighted:WeightedVerifier",
    "gym": "verifiers.gym:GymVerifier",
    "code": "verifiers.code.verifier:CodeVerifier",
}
JUDGED = ["response", "reference"]
"""First parameters of a function that is a verifier; one with others builds a verifier."""
VERIFIERS = Plugins("verifier", ENTRY_POINT_GROUP, BUILT_IN)


@runtime_checkable
class Composite(Protocol):
    """A verifier class that builds others from its options."""

    def check_parts(self, options: dict[str, Any], folder: Path | None) -> dict[str, Any]:
        """The options with those of the parts checked. Raises ValueError."""
        ...


def load_verifier(
    name: str, options: Mapping[str, object] | None = None, *, folder: Path | None = None
) -> Verifier:
    """The verifier called `name`, built with `options`. Raises ValueError with a sentence
    that names the mistake."""
    return build_verifier(name, check_options(name, options or {}, folder=folder), folder=folder)


def check_options(
    name: str, options: Mapping[str, object], *, folder: Path | None = None
) -> dict[str, object]:
    """The options that `build_verifier` takes: those of our own verifiers checked and with their types, those
    of yours as they are."""
    target = VERIFIERS.find(name, folder)
    if target.__module__.partition(".")[0] != __package__:
        return dict(options)
    found = checked(VERIFIERS.say(name), target, options, internal=("folder",))
    return target.check_parts(found, folder) if isinstance(target, Composite) else found


def build_verifier(name: str, options: Mapping[str, object], *, folder: Path | None = None) -> Verifier:
    """The verifier called `name`, with options that were checked."""
    target: Any = VERIFIERS.find(name, folder)
    given = dict(options)
    if isinstance(target, Composite):
        # Its parts may be named by a path too, relative to the same folder.
        given["folder"] = folder
    try:
        if inspect.isfunction(target) and list(inspect.signature(target).parameters)[:2] == JUDGED:
            target = from_function(target)
        verifier = target(**given)
    except ValueError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, TypeError) else f"{type(error).__name__}: "
        raise ValueError(
            f"Verifier {name!r} could not be built with the options {options!r}: {kind}{error}."
        ) from error
    for method in ("parse_reference",) if is_group_wise(verifier) else ("parse_reference", "verify"):
        if not callable(getattr(verifier, method, None)):
            raise ValueError(
                f"Verifier {name!r} has no method {method!r}: a verifier is a class with "
                "parse_reference(raw) and verify(response, reference), or verify_group(responses, reference)."
            )
    for method in ("parse_reference", "verify", "verify_group"):
        if inspect.iscoroutinefunction(getattr(verifier, method, None)):
            waits = (
                "" if method == "parse_reference" else f" A verifier that waits has {method}_async beside it."
            )
            raise ValueError(f"Verifier {name!r}: {method} is async, expected a plain method.{waits}")
    min_responses(verifier)
    return cast(Verifier, verifier)


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
