"""Runs agents that are functions: `python -m asyncrl.rollout.agents.function NAME [SOCKET BEAT_SECONDS]`.

By its name alone, the function makes the trajectory of this process. With a socket, it makes several in one
event loop: the process reads lines of JSON, {"start": number, "task": ..., "base_url": ..., "api_key": ...}
and {"end": number}. It writes {"number": ..., "found": result} or {"number": ..., "error": words} where a
trajectory has ended, and {"beat": true} while the loop turns.
"""

import asyncio
import inspect
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from asyncrl.rollout.agents.task import MOST_RETRIES, VERDICT_VARIABLE, AgentRefused, AgentTask
from verifiers.plugins import Plugins

FUNCTIONS = Plugins("agent", "asyncrl.agents", {})
AgentFunction = Callable[[AgentTask], Coroutine[Any, Any, Any]]
LARGEST_LINE = 2**28
_TAIL_CHARACTERS = 2000
OUT_OF_MEMORY = 3
"""Exit code: no trajectory of the process can be blamed, nor trusted with the rest."""


def load_function(name: str) -> AgentFunction:
    """Raises ValueError with a sentence that names the mistake."""
    found: Any = FUNCTIONS.find(name, None)
    if not inspect.iscoroutinefunction(found):
        raise ValueError(f"agent.function is {name}, which is not an async function. Expected async def.")
    function: AgentFunction = found
    return function


class FunctionHost:
    def __init__(self, function: AgentFunction, beat_seconds: float) -> None:
        self._function = function
        self._beat_seconds = beat_seconds
        self._running: dict[int, asyncio.Task[dict[str, Any]]] = {}

    async def run(self, connection: socket.socket) -> None:
        """Until the other side hangs up."""
        # A process of one trajectory does not need it.
        import aiohttp

        reader, self._writer = await asyncio.open_connection(sock=connection, limit=LARGEST_LINE)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
        ) as self._http:
            beating = asyncio.create_task(self._beat())
            while line := await reader.readline():
                self._take(json.loads(line))
            beating.cancel()
        # Nothing of it is wanted now, whatever a function does about it.
        os._exit(0)

    def _take(self, asked: dict[str, Any]) -> None:
        if "end" in asked:
            running = self._running.get(asked["end"])
            if running is not None:
                running.cancel()
            return
        number = asked["start"]
        task = AgentTask(
            **asked["task"], base_url=asked["base_url"], api_key=asked["api_key"], post=self._post
        )
        running = asyncio.create_task(self._play(task))
        self._running[number] = running
        # Also of one that is ended before it began.
        running.add_done_callback(lambda running: self._over(number, running))

    async def _play(self, task: AgentTask) -> dict[str, Any]:
        try:
            found = {"found": await self._function(task)}
            json.dumps(found)
            return found
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except Exception as error:
            return {"error": "".join(traceback.format_exception(error))[-_TAIL_CHARACTERS:].strip()}

    def _over(self, number: int, running: asyncio.Task[dict[str, Any]]) -> None:
        del self._running[number]
        said = {"error": "it was ended"} if running.cancelled() else running.result()
        self._say({"number": number, **said})

    def _say(self, said: dict[str, Any]) -> None:
        self._writer.write(json.dumps(said).encode() + b"\n")

    async def _beat(self) -> None:
        while True:
            self._say({"beat": True})
            await asyncio.sleep(self._beat_seconds)

    async def _post(self, task: AgentTask, body: dict[str, Any]) -> dict[str, Any]:
        import aiohttp

        for retry in range(MOST_RETRIES + 1):
            try:
                async with self._http.post(task.url(), json=body, headers=task.headers(retry)) as response:
                    if response.status != 200:
                        raise AgentRefused(f"{response.status}: {await response.text(errors='replace')}")
                    found: dict[str, Any] = await response.json()
                    return found
            except (OSError, aiohttp.ClientError):
                if retry == MOST_RETRIES:
                    raise
        raise AssertionError("unreachable")


def main() -> None:
    name, *hosted = sys.argv[1:]
    try:
        function = load_function(name)
    except ValueError as error:
        sys.exit(str(error))
    if hosted:
        descriptor, beat_seconds = hosted
        asyncio.run(FunctionHost(function, float(beat_seconds)).run(socket.socket(fileno=int(descriptor))))
    found = asyncio.run(function(AgentTask.read()))
    verdict = os.environ.get(VERDICT_VARIABLE)
    if verdict is not None and found is not None:
        Path(verdict).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
