"""The processes of episodes: `python -m asyncrl.turns.host`, a template that has loaded environments and
tools, and what it forks, one process per trajectory.

A process builds its environment and answers one request at a time. Whatever code of the environment or of a
tool raises ends here and becomes words; what the pool makes of them says `asyncrl.turns.hosted_episode`."""

import contextlib
import functools
import importlib
import inspect
import json
import os
import pickle
import resource
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.turns.environment import Environment, EnvironmentUnavailable, Recovery
from asyncrl.turns.registry import ENVIRONMENTS, build_environment, recovery_of
from asyncrl.turns.replies import TooLarge, WrongReply, pack_opening, pack_output, pack_reply
from sandbox import frames, landlock
from sandbox.kernel import limit_memory
from verifiers import fork_server
from verifiers.plugins import Plugin
from verifiers.storable import MAX_FRAMES, MAX_TRACE_CHARACTERS, MAX_WORDS_CHARACTERS, storable

if TYPE_CHECKING:
    import asyncio

    from asyncrl.turns.tools import Tool

BUILD, START, STEP, CALL, CLOSE = "build", "start", "step", "call", "close"
"""Requests. BUILD with a pickled Cast, START with a pickled row, STEP with a text, CALL with the arguments in
JSON and the tool's name in the header."""


class Failure(StrEnum):
    """Why a request has no result."""

    RAISED = "raised"
    """Something of the environment or a tool is broken."""
    UNAVAILABLE = "unavailable"
    """It says that something else failed."""
    LIMIT = "limit"
    """Memory, recursion or size, of a turn."""
    TOOL = "tool"
    """A tool raised: words for the model."""


@dataclass(frozen=True, slots=True)
class Cast:
    """The environment and the tools that a process hosts."""

    environment: str | None
    options: Mapping[str, Any]
    tools: Sequence[Any]
    """Named as in the recipe."""
    folder: str | None
    """Paths in names are relative to it."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Work of the template before it forks."""

    cast: Cast | None = None
    hidden: tuple[str, ...] = ()
    """Files and folders that it gives up."""


class Loaded:
    """Classes and tools that the template has loaded; each process that it forks has a copy, state of tools
    included."""

    def __init__(self) -> None:
        self._tools: dict[str, dict[str, Tool]] = {}
        self._classes: dict[tuple[str | None, str | None], Plugin] = {}

    def tools(self, cast: Cast) -> "dict[str, Tool]":
        key = repr((cast.tools, cast.folder))
        if key not in self._tools and cast.tools:
            # Here: it imports pydantic, for whose memory each process of an episode pays.
            from asyncrl.turns.tools import load_tools

            tools = {tool.name: tool for tool in load_tools(cast.tools, _folder(cast))}
            for tool in tools.values():
                # The first check of a process imports for 0.1 s what pydantic imports when it is needed.
                with contextlib.suppress(ValueError):
                    tool.checked(dict.fromkeys(tool.arguments()))
            self._tools[key] = tools
        return self._tools.get(key, {})

    def environment(self, cast: Cast) -> Plugin:
        """The class of the environment, prepared. Raises ValueError, and what its code raises."""
        assert cast.environment is not None
        key = cast.environment, cast.folder
        if key not in self._classes:
            found = ENVIRONMENTS.find(cast.environment, _folder(cast))
            prepare = getattr(found, "prepare", None)
            if callable(prepare):
                prepare()
            self._classes[key] = found
        return self._classes[key]


def main() -> None:
    """The template: `python -m asyncrl.turns.host CONTROL_FD POOL_PID`."""
    loaded = Loaded()
    fork_server.run(
        lambda payload: _prepare(pickle.loads(payload), loaded),
        lambda connection, memory_bytes: _serve(connection, memory_bytes, loaded),
    )


def _prepare(what: Preparation, loaded: Loaded) -> None:
    if what.hidden and landlock.abi() >= landlock.LEAST_ABI:
        try:
            landlock.hide([Path(path) for path in what.hidden])
        except OSError:
            # Rather no process than one that sees it all.
            traceback.print_exc()
            os._exit(1)
    if what.cast is not None:
        loaded.tools(what.cast)
        if what.cast.environment is not None:
            loaded.environment(what.cast)


def _folder(cast: Cast) -> Path | None:
    return None if cast.folder is None else Path(cast.folder)


def _serve(connection: socket.socket, memory_bytes: int, loaded: Loaded) -> None:
    """The life of a process: one request, one reply, until the socket closes."""
    # Its end is that of what it starts, too.
    os.setpgid(0, 0)
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[0])
    # Beyond what loading took, which all trajectories share.
    limit_memory(pages * resource.getpagesize() + memory_bytes)
    if "numpy" in sys.modules:
        # As `random` does by itself: else all trajectories would draw the same.
        sys.modules["numpy"].random.seed()
    host = _Host(connection, loaded)
    while True:
        header, (body,) = host.receive()
        connection.sendall(frames.pack(host.answer(header, body), [b""]))
        fork_server.collect_garbage()


class _Host:
    """One trajectory's environment and tools."""

    def __init__(self, connection: socket.socket, loaded: Loaded) -> None:
        self._connection = connection
        self._loaded = loaded
        self._environment: Environment | None = None
        self._tools: dict[str, Tool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def receive(self) -> frames.Message:
        """The next request. What the environment awaits in the background continues meanwhile."""
        if self._loop is None:
            return frames.receive(functools.partial(frames.read_exactly, self._connection))
        return self._loop.run_until_complete(self._receive_beside())

    async def _receive_beside(self) -> frames.Message:
        assert self._loop is not None
        self._connection.setblocking(False)
        try:
            first = await self._loop.sock_recv(self._connection, 1)
        finally:
            self._connection.setblocking(True)
        if not first:
            raise ConnectionError("the other end has hung up")
        # The rest is on its way.
        rest = functools.partial(frames.read_exactly, self._connection)
        pending = [first]
        return frames.receive(lambda size: pending.pop() + rest(size - 1) if pending else rest(size))

    def answer(self, header: Mapping[str, Any], body: bytes) -> dict[str, Any]:
        """The reply to a request: {"result": ...}, or {"failure": ..., "detail": ..., "trace": ...}."""
        request = header["request"]
        try:
            return {"result": self._result(request, header, body)}
        except EnvironmentUnavailable as error:
            return _failed(Failure.UNAVAILABLE, str(error))
        except WrongReply as error:
            return _failed(Failure.RAISED, str(error))
        # The boundary: it has failed, whatever it raises; sys.exit is no crash either.
        except BaseException as error:
            return _failure(request, error)

    def _result(self, request: str, header: Mapping[str, Any], body: bytes) -> Any:
        match request:
            case "build":
                return self._build(pickle.loads(body))
            case "start":
                assert self._environment is not None
                return pack_opening(self._awaited(self._environment.start(pickle.loads(body))))
            case "step":
                assert self._environment is not None
                text = body.decode("utf-8", "surrogatepass")
                return pack_reply(self._awaited(self._environment.step(text)))
            case "call":
                tool = self._tools[header["name"]]
                arguments = tool.checked(json.loads(body))
                return pack_output(self._awaited(tool.function(**arguments)), tool.name)
        return self._close()

    def _build(self, cast: Cast) -> dict[str, Any]:
        self._tools = self._loaded.tools(cast)
        tools = {name: recovery_of(tool, f"The tool {tool.name!r}") for name, tool in self._tools.items()}
        parts: list[object] = list(self._tools.values())
        own = Recovery.STATELESS
        if cast.environment is not None:
            self._environment = build_environment(
                cast.environment, self._loaded.environment(cast), cast.options
            )
            own = recovery_of(self._environment, ENVIRONMENTS.say(cast.environment))
            parts.append(self._environment)
        return {
            "recovery": own,
            "tools": tools,
            "closes": any(callable(getattr(part, "close", None)) for part in parts),
        }

    def _close(self) -> None:
        for part in (self._environment, *self._tools.values()):
            close = getattr(part, "close", None)
            if callable(close):
                try:
                    self._awaited(close())
                except Exception:  # the conversation is over: no turn could fail of it
                    traceback.print_exc()

    def _awaited(self, found: Any) -> Any:
        if not inspect.isawaitable(found):
            return found
        if self._loop is None:
            # Here: each process pays for the memory of what its template has imported.
            import asyncio

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(_as_coroutine(found))


async def _as_coroutine(found: Any) -> Any:
    return await found


def _failure(request: str, error: BaseException) -> dict[str, Any]:
    words = _words(error)
    if isinstance(error, TooLarge | MemoryError | RecursionError):
        if request in (STEP, CALL):
            return _failed(Failure.LIMIT, words)
    elif request == CALL:
        # A ValueError is a sentence for the model.
        return _failed(Failure.TOOL, str(error) if isinstance(error, ValueError) else words)
    trace = "".join(traceback.format_exception(error, limit=-MAX_FRAMES))
    # A sentence about its name or options stands for itself.
    is_sentence = request == BUILD and isinstance(error, ValueError)
    return _failed(Failure.RAISED, str(error) if is_sentence else f"{request} raised {words}", trace)


def _failed(kind: Failure, detail: str, trace: str = "") -> dict[str, Any]:
    return {
        "failure": kind,
        "detail": storable(detail, limit=MAX_WORDS_CHARACTERS),
        "trace": storable(trace, limit=MAX_TRACE_CHARACTERS),
    }


def _words(error: BaseException) -> str:
    if isinstance(error, TooLarge):
        return str(error)
    try:
        words = str(error)
    except Exception as second:  # an exception's own __str__ may raise as well
        words = f"its message cannot be read: {type(second).__name__}"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


if __name__ == "__main__":
    # Under its own name: what is pickled for it names its classes by that.
    importlib.import_module("asyncrl.turns.host").main()
