"""Names to verifiers. Owns the list of built-ins and the four ways to name one; imports a verifier only when
asked for.

A name is a built-in ("math"), "package.module:Name", "./file.py:Name" (from the folder of the recipe or row
file), or an entry point of the group `asyncrl.verifiers`. The named object is called with the options as
keyword arguments; a function (response, reference) judges as it is."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from verifiers.function import from_function
from verifiers.groups import is_group_wise, min_responses
from verifiers.options import checked
from verifiers.plugins import Plugins
from verifiers.verifier import Verifier

ENTRY_POINT_GROUP = "asyncrl.verifiers"

BUILT_IN = {
    "math": "verifiers.math.verifier:MathVerifier",
    "exact": "verifiers.exact:ExactVerifier",
    "numeric": "verifiers.numeric:NumericVerifier",
    "regex": "verifiers.regex:RegexVerifier",
    "choice": "verifiers.choice:ChoiceVerifier",
    "countdown": "verifiers.countdown:CountdownVerifier",
    "format": "verifiers.format:FormatVerifier",
    "json_schema": "verifiers.json_schema:JsonSchemaVerifier",
    "length": "verifiers.length:LengthVerifier",
    "remote": "verifiers.remote:RemoteVerifier",
    "judge": "verifiers.judge:JudgeVerifier",
    "group_judge": "verifiers.group_judge:GroupJudge",
    "reward_model": "verifiers.reward_model:RewardModelVerifier",
    "weighted": "verifiers.weighted:WeightedVerifier",
    "gym": "verifiers.gym.verifier:GymVerifier",
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
