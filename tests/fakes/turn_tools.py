"""Tools of an episode's process, which do what their argument says."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.turns import EnvironmentUnavailable, Recovery

LOADER = "fakes.turn_tools:load_tools"
CHECKED_IN: list[int] = []
"""The processes of all checks of arguments, in order."""


@dataclass
class FakeTool:
    """As asyncrl.turns.tools.Tool, as far as a process needs it."""

    name: str
    function: Callable[..., Any]
    recovery: Recovery = Recovery.STATELESS
    close: Callable[[], Any] | None = None

    def arguments(self) -> list[str]:
        return ["do", "with_"] if self.name == "odd" else []

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        CHECKED_IN.append(os.getpid())
        for name in arguments:
            if self.name == "odd" and name not in ("do", "with_"):
                raise ValueError(f"odd has no argument {name!r}.")
        return dict(arguments)


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, **arguments: Any) -> str:
        self.calls += 1
        return str(self.calls)


def odd(*, do: str, with_: Any = None) -> Any:
    match do:
        case "sleep":
            time.sleep(1000)
        case "raise":
            raise KeyError("a bug")
        case "exit":
            raise SystemExit(3)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            bytearray(1 << 40)
        case "unavailable":
            raise EnvironmentUnavailable("the index is away")
        case "processes":
            return [*CHECKED_IN, os.getpid()]
        case "number":
            return {"n": [3, None]}
        case "object":
            return object()
    return f"{do} {with_}"


async def awaits(**arguments: Any) -> str:
    import asyncio

    await asyncio.sleep(0)
    return "awaited"


def load_tools(named: Sequence[str], folder: Path | None) -> list[FakeTool]:
    """By name; raises ValueError for one that there is not."""
    known = {
        "count": FakeTool("count", Counter(), Recovery.REPLAYABLE),
        "odd": FakeTool("odd", odd),
        "awaits": FakeTool("awaits", awaits),
    }
    for name in named:
        if name not in known:
            raise ValueError(f"There is no tool {name!r}.")
    return [known[name] for name in named]
