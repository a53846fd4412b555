"""Names to environments. Owns the list of built-ins; imports an environment only when asked for.

A name is a built-in ("gym_feedback"), "package.module:Name", "./file.py:Name" (from the folder of the recipe
or data file), or an entry point of the group `asyncrl.environments`. The named class is called with the
options as keyword arguments, once per trajectory."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from asyncrl.turns.environment import Environment, Recovery
from verifiers.plugins import Plugin, Plugins, checked, nearest

ENTRY_POINT_GROUP = "asyncrl.environments"

BUILT_IN = {
    "container": "asyncrl.turns.environments.container:Container",
    "gym_feedback": "asyncrl.turns.environments.gym_feedback:GymFeedback",
    "openenv": "asyncrl.turns.environments.openenv:OpenEnv",
}
ENVIRONMENTS = Plugins("environment", ENTRY_POINT_GROUP, BUILT_IN)


def load_environment(
    name: str, options: Mapping[str, Any] | None = None, *, folder: Path | None = None
) -> Environment:
    """The environment called `name`, built with `options`. Raises ValueError with a sentence that names the
    mistake."""
    return build_environment(name, ENVIRONMENTS.find(name, folder), check_options(name, options or {}))


def check_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that `build_environment` takes: those of a built-in environment checked and with their
    types, those of yours as they are. Raises ValueError."""
    if name not in BUILT_IN:
        return dict(options)
    return checked(ENVIRONMENTS.say(name), ENVIRONMENTS.find(name, None), options)


def build_environment(name: str, target: Plugin, options: Mapping[str, Any]) -> Environment:
    """An object of the class that `name` names, with options that were checked. Raises ValueError, and what
    the class raises."""
    said = ENVIRONMENTS.say(name)
    if options and name not in BUILT_IN:
        _refuse_unknown(said, target, options)
    try:
        environment = target(**options)
    except TypeError as error:
        raise ValueError(f"{said} could not be built with the options {dict(options)!r}: {error}.") from error
    for method in ("start", "step"):
        if not callable(getattr(environment, method, None)):
            raise ValueError(
                f"{said} has no method {method!r}: an environment is a class with start(row) and step(text)."
            )
    return cast(Environment, environment)


def recovery_of(environment: object, said: str) -> Recovery:
    """Raises ValueError for one that there is not; `said` names whose it is."""
    found = getattr(environment, "recovery", Recovery.REPLAYABLE)
    try:
        return Recovery(found)
    except ValueError:
        raise ValueError(
            f"{said} has the recovery {found!r}, expected one of {', '.join(Recovery)}."
        ) from None


def _refuse_unknown(said: str, target: Plugin, options: Mapping[str, Any]) -> None:
    """Raises ValueError for options that the class does not take."""
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        # One in C: its constructor has the word.
        return
    if any(found.kind is inspect.Parameter.VAR_KEYWORD for found in parameters.values()):
        return
    known = [name for name, found in parameters.items() if found.kind is not inspect.Parameter.VAR_POSITIONAL]
    for name in options:
        if name not in known:
            raise ValueError(
                f"{said} has no option {name!r}.{nearest(name, known)} "
                f"Its options: {', '.join(sorted(known)) or 'none'}."
            )
