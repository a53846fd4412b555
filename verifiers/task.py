"""The task of a response, for verifiers that need more than the response and its reference.

A verifier that takes it has a third positional parameter without a default in `verify` (or `verify_fast`,
`verify_async`, `cache_key`), or a parameter named `task`. Others are called with two arguments. One that
judges a group takes the tasks of its responses in the same way: in third place, or by the name `tasks`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any, TypeVar

T = TypeVar("T")
Message = Mapping[str, Any]
"""A chat message, {"role": ..., "content": ...}."""

METHODS = ("verify", "verify_fast", "verify_async", "cache_key")
"""Methods of a verifier that may take the task."""
GROUP_METHODS = ("verify_group", "verify_group_async")
"""Methods that may take the tasks of all responses."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NO_DEFAULT = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Task:
    """Plain data: what was asked, and the whole conversation. Empty where the caller knows nothing of it."""

    prompt: str = ""
    """The text that the model continued; chat prompts as their template writes them."""
    messages: tuple[Message, ...] = ()
    """The prompt as chat messages; empty where it is text."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the data row, as far as they are JSON."""
    turns: tuple[str, ...] = ()
    """The texts that the model wrote, turn by turn; one without environment and tools."""
    observations: tuple[tuple[Message, ...], ...] = ()
    """The messages that answered each turn but the last; an answered last turn is followed by none."""

    def question(self) -> str:
        """The text of the prompt's last user message, else the prompt."""
        asked = (each.get("content") for each in reversed(self.messages) if each.get("role") == "user")
        return next((text for text in asked if isinstance(text, str)), self.prompt)

    def conversation(self) -> list[Message]:
        """Prompt, turns and observations, as messages in their order."""
        told: list[Message] = list(self.messages) or [{"role": "user", "content": self.prompt}]
        for index, text in enumerate(self.turns):
            told.append({"role": "assistant", "content": text})
            told += self.observations[index] if index < len(self.observations) else ()
        return told

    def as_json(self) -> dict[str, Any]:
        """The same for a server."""
        return {
            "prompt": self.prompt,
            "messages": list(self.messages),
            "row": dict(self.row),
            "turns": list(self.turns),
            "observations": [list(answer) for answer in self.observations],
        }


def takes_task(verifier: object) -> bool:
    """Whether one of its methods takes the task; an attribute `takes_task` says it instead."""
    said = getattr(verifier, "takes_task", None)
    if isinstance(said, bool):
        return said
    methods = [*((name, "task") for name in METHODS), *((name, "tasks") for name in GROUP_METHODS)]
    return any(_place_of(getattr(verifier, method, None), name) is not None for method, name in methods)


def response_task(response: str, task: Task) -> Task:
    """`task`, answered by `response` alone."""
    return replace(task, turns=(response,), observations=())


def with_task(method: Callable[..., T]) -> Callable[[str, Any, Task], T]:
    """`method` of a verifier, called with a task that is left out where the method does not take it."""
    return _with(method, "task")


def with_tasks(method: Callable[..., T]) -> Callable[[Sequence[str], Any, Sequence[Task]], T]:
    """The same for one that judges a group, and the tasks of its responses."""
    return _with(method, "tasks")


def _with(method: Callable[..., T], name: str) -> Callable[[Any, Any, Any], T]:
    match _place_of(method, name):
        case None:
            return lambda response, reference, told: method(response, reference)
        case "third":
            return method
        case _:
            return lambda response, reference, told: method(response, reference, **{name: told})


def _place_of(method: object, name: str) -> str | None:
    """Where the method takes the parameter `name`: "third" or "named"; None where it does not."""
    if isinstance(method, MethodType) and isinstance(method.__func__, FunctionType):
        return _place_in(method.__func__, 1, name)
    return _place_in.__wrapped__(method, 0, name) if callable(method) else None


@lru_cache(maxsize=256)
def _place_in(function: Callable[..., object], num_bound: int, name: str) -> str | None:
    """As `_place_of`; the first `num_bound` parameters are bound. Kept: asked for each verdict."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[num_bound:]
    except (TypeError, ValueError):
        # One in C says nothing.
        return None
    positional = [found for found in parameters if found.kind in _POSITIONAL]
    if len(positional) >= 3 and (positional[2].name == name or positional[2].default is _NO_DEFAULT):
        return "third"
    is_named = any(found.name == name and found.kind in _BY_NAME for found in parameters)
    return "named" if is_named else None
