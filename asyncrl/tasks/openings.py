"""Messages by which environments open conversations: asked of each row once, while data is read.

As with golds, code of the user's runs in the process that reads the data, before anything starts.
"""

import asyncio
import inspect
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from asyncrl.data.rows import Row
from asyncrl.errors import InputError
from asyncrl.records import EnvironmentSpec
from asyncrl.system.plugins import SlowCalls
from asyncrl.turns.environment import Message
from asyncrl.turns.registry import load_environment
from asyncrl.turns.replies import TooLarge, WrongReply, pack_opening


class Openings:
    def __init__(self, folder: Path) -> None:
        """`folder`: what "./file.py:Name" is relative to."""
        self._folder = folder
        self._slow_calls = SlowCalls()

    def opened(self, row: Row) -> Row:
        """The row with the messages of its environment as its prompt, where that has any. Raises InputError
        with the row's place."""
        if row.environment is None:
            return row
        messages = self._messages(row.environment, row.columns or {}, row.where)
        return row if messages is None else row._replace(prompt=messages)

    def _messages(self, spec: EnvironmentSpec, row: Mapping[str, Any], where: str) -> list[Message] | None:
        said = f'{where}: environment "{spec.name}"'
        try:
            with self._slow_calls.call(f'start of the environment "{spec.name}" on {where}'):
                environment = load_environment(spec.name, spec.options, folder=self._folder)
                opening = pack_opening(_awaited(environment.start(dict(row))))
        except (WrongReply, TooLarge) as error:
            raise InputError(f"{said}: {error}") from error
        # The boundary: an environment that raises has failed, whatever it raises.
        except (Exception, SystemExit) as error:
            if isinstance(error, (ValueError, ImportError)) and not _is_in_start(error):
                options = "" if spec.name in str(error) else f" with options {dict(spec.options)}"
                raise InputError(f"{said}{options}: {error}") from error
            raise InputError(f"{said}: start(row) raised {_told(error)}") from error
        if opening is not None and not opening:
            raise InputError(
                f"{said}: start returned no messages, expected one at least, or None for the row's prompt"
            )
        return opening


def _awaited(found: Any) -> Any:
    """The result, also of a start that is `async`."""
    if not inspect.isawaitable(found):
        return found

    async def wait() -> Any:
        return await found

    # In a thread of its own, since the caller's may have a loop that runs.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def _is_in_start(error: BaseException) -> bool:
    """Whether a start raised it, and not what finds and builds the environment."""
    return not any(frame.name == load_environment.__name__ for frame in _frames(error))


def _told(error: BaseException) -> str:
    last = _frames(error)[-1]
    return f"{type(error).__name__}: {str(error)[:500]} ({last.filename}:{last.lineno})"
