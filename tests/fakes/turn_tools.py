"""Tools of an episode's process, which do what their argument says."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from asyncrl.turns import EnvironmentUnavailable
from asyncrl.turns.tools import Tool

CHECKED_IN: list[int] = []
"""The processes of all checks of arguments, in order."""
_checked = Tool.checked


def _noted(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    CHECKED_IN.append(os.getpid())
    return _checked(tool, arguments)


Tool.checked = _noted  # type: ignore[method-assign]


def named(*names: str) -> list[str]:
    """As a recipe names tools of this file."""
    return [f"{__name__}:{name}" for name in names]


class count:
    """Counts its calls."""

    recovery = "replayable"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return str(self.calls)


def odd(*, do: str, with_: Any = None) -> Any:
    """Does what it is told.

    Args:
        do: What.
        with_: Anything.
    """
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


async def awaits() -> str:
    """Waits."""
    import asyncio

    await asyncio.sleep(0)
    return "awaited"
