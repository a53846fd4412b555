"""Options of servers against those of the installed SGLang, before anything starts. Imports no SGLang.

Asked in a process of its own, which takes about two seconds: only recipes with options pay for it.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Any

from asyncrl.errors import InputError, did_you_mean
from asyncrl.recipe import Recipe
from asyncrl.recipe.server_options import ALLOWED, option_names, refuse_options
from asyncrl.serving.engine.environment import engine_environment

PROGRAM = "asyncrl.serving.engine.options"
ASK_SECONDS = 120.0


def check_options(recipe: Recipe) -> None:
    """Raises InputError for an option of servers that the run starts which the installed SGLang does not
    have, which is not known to be safe, or whose value SGLang does not take, with SGLang's sentence."""
    given = []
    if recipe.serving.num_started() or recipe.evaluation.num_servers:
        given.append(("serving.extra_arguments", recipe.serving.extra_arguments))
    if recipe.teacher.num_started():
        given.append(("teacher.extra_arguments", recipe.teacher.extra_arguments))
    for key, arguments in given:
        if arguments:
            check_arguments(key, arguments, ask_sglang(tuple(arguments)))


def check_arguments(key: str, arguments: Sequence[str], said: dict[str, Any]) -> None:
    """`said` is what `ask_sglang` answers about `arguments`."""
    known, sglang = said["options"], f"SGLang {said['sglang']}"
    for option in option_names(arguments):
        if option not in known:
            raise InputError(f"{key} has {option}, which {sglang} does not have.{_nearest(option, known)}")
        if option not in ALLOWED:
            raise InputError(
                f"{key} has {option}: it is not known to be safe for tokens, log-probs, versions and "
                f"weights. Remove it. Known to be safe: {', '.join(sorted(ALLOWED))}."
            )
    if said["refusal"] is not None:
        raise InputError(f"{key} is {' '.join(arguments)!r}, of which {sglang} says: {said['refusal']}.")


def _nearest(option: str, known: Collection[str]) -> str:
    """ " Did you mean NAME?", with the reason where that one is refused, too."""
    meant = did_you_mean(option, known)
    if not meant:
        return f" Known to be safe: {', '.join(sorted(ALLOWED))}."
    name = meant.removeprefix(" Did you mean ").removesuffix("?")
    try:
        refuse_options([name], "A server")
    except ValueError as error:
        return f"{meant} {error}"
    return meant


@functools.cache
def ask_sglang(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Answer of engine/options.py, asked once per process. Raises InputError without SGLang."""
    command = [sys.executable, "-m", PROGRAM, *arguments]
    environment = os.environ | engine_environment(threads=1, has_gpu=False)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=ASK_SECONDS, check=True
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise InputError(f"SGLang did not say within {ASK_SECONDS:g} s which options it has.") from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        raise InputError(f"SGLang could not be asked which options it has: {last[0]}") from None
    return answer
