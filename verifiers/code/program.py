"""Runs inside the sandbox, with the untrusted program: loads it once per test, evaluates calls and reports
plain values, or serves a judge (server.py).

Every test finds the program as freshly loaded: what one test changed in it, the next does not see. Knows
inputs only; expected values never come here. The program can tamper with all of this, and gains nothing: it
can only choose which values to report."""

import functools
import importlib
import io
import json
import os
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any, TypedDict

from verifiers.code import values

_RECURSION_LIMIT = 1000
_RELOAD_SECONDS = 0.02
_MAX_PRINTED_BYTES = 1 << 20
_DONE = 77
_WRITABLE = ("work", "tmp", "shm")
"""Directories of the box, side by side, that a program may write to."""


def describe(error: BaseException) -> str:
    """One line about an exception."""
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:
        return "an exception that cannot be printed"


def find(namespace: dict[str, Any], name: str) -> Any:
    """The program's object called `name`: its global, or the method of its class Solution."""
    if name in namespace:
        return namespace[name]
    solution = namespace.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    raise NameError(f"name {name!r} is not defined")


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


class _Files:
    """The files of the box and its working directory, as they were at first."""

    def __init__(self) -> None:
        self._work = os.getcwd()
        box, name = os.path.split(self._work)
        # Outside a box the files belong to other programs.
        roots = [f"{box}/{item}" for item in _WRITABLE] if name == "work" else []
        self._roots = [root for root in roots if os.path.isdir(root)]
        self._kept: set[str] = set()
        self._kept = set(self.left())

    def left(self) -> list[str]:
        """Paths that the program has made, at the top of the box's directories."""
        paths = [f"{root}/{name}" for root in self._roots for name in os.listdir(root)]
        return [path for path in paths if path not in self._kept]

    def restore(self) -> None:
        os.chdir(self._work)
        for path in self.left():
            _remove(path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


class Program:
    """The program, compiled once and loaded for each test. Its main block does not run."""

    def __init__(self, source: str) -> None:
        # The program may recurse as deep as it could on its own, whatever called it here.
        sys.setrecursionlimit(_RECURSION_LIMIT + _depth() + 20)
        self.namespace: dict[str, Any] = {}
        self._files = _Files()
        self.failure: str | None = None
        self._code: Any = None
        self._load_seconds = 0.0
        self._imported = False
        """Whether the last loading took its time for imports, which the next one need not repeat."""
        try:
            self._code = compile(source, "solution.py", "exec", dont_inherit=True)
        except BaseException as error:
            self.failure = describe(error)
        else:
            self._load()
        self._writes_files = bool(self._files.left())
        """Whether loading writes files."""

    def _load(self) -> None:
        module = types.ModuleType("solution")
        module.__file__ = "solution.py"
        self.namespace = module.__dict__
        self.failure = None
        sys.modules["solution"] = module
        started, modules = time.process_time(), len(sys.modules)
        try:
            exec(self._code, self.namespace)
        except SystemExit:
            # What was defined before it left is there.
            pass
        except BaseException as error:
            self.failure = describe(error)
        self._load_seconds = time.process_time() - started
        self._imported = len(sys.modules) > modules

    def run_each(self, total: int, run: Callable[[int], None]) -> None:
        """run(0), run(1) and so on, each with the program as freshly loaded, in the box as it was.

        A program that loads quickly is loaded again; one that computes something first is copied by a fork,
        unless it has threads, which a fork would lose: its tests share one state."""
        is_used = False
        for index in range(total):
            is_slow = self._load_seconds > _RELOAD_SECONDS
            has_threads = threading.active_count() > 1
            if is_used and self._code is not None and not (is_slow and has_threads):
                self._files.restore()
                self._load()
            if index < total - 1 and not (self._imported or self._writes_files or has_threads):
                is_used = self._load_seconds <= _RELOAD_SECONDS
            else:
                is_used = True
            if is_used:
                run(index)
            else:
                _in_a_copy(run, index)
                self._files.restore()


def _in_a_copy(run: Callable[[int], None], index: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            run(index)
            os._exit(_DONE)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        # As if it had happened here: the box's limits count.
        os.kill(os.getpid(), os.WTERMSIG(status))
    elif os.WEXITSTATUS(status) != _DONE:
        os._exit(os.WEXITSTATUS(status))


class Printed:
    """Captures what is written to standard output meanwhile, if that is wanted."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def __enter__(self) -> "Printed":
        if self._wanted:
            self._before = sys.stdout
            self._bytes = io.BytesIO()
            self._stream = io.TextIOWrapper(self._bytes, "utf-8", "surrogateescape", write_through=True)
            sys.stdout = self._stream
        return self

    def __exit__(self, *error: object) -> None:
        if self._wanted:
            sys.stdout = self._before

    def text(self) -> "str | None":
        """All of it, None where it was not wanted."""
        if not self._wanted:
            return None
        try:
            self._stream.flush()
            return self._bytes.getvalue()[:_MAX_PRINTED_BYTES].decode("utf-8", "replace")
        except ValueError:
            # The program closed it.
            return ""


@functools.cache
def event_loop() -> Any:
    """One event loop for all coroutines of the program: its locks and queues belong to a loop."""
    import asyncio

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def awaited(value: Any) -> Any:
    """The result of a coroutine; other values as they are."""
    return event_loop().run_until_complete(value) if isinstance(value, types.CoroutineType) else value


class Call(TypedDict):
    """An expression to evaluate; nothing of what is expected of it."""

    source: str
    needs: tuple[str, ...]
    """Names that the program must define."""
    library: tuple[tuple[str, str], ...]
    """(name, module of the standard library)."""
    setup: str
    direct: bool
    """One call with nothing but inputs in it."""
    awaits: bool
    """A coroutine that it gives is awaited."""
    capture: bool
    """Its output is reported."""
    ignores_value: bool


class CallsRequest(TypedDict):
    """Request to report the value of each call."""

    program: str
    calls: list[Call]


class JudgeRequest(TypedDict):
    """Request to serve a judge over descriptor 3."""

    program: str
    tests: int
    capture: bool


def _guarded(function: Any) -> Any:
    """The function for use inside of another call: a StopIteration that escapes it would end a `map` or a
    loop as if all were well."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration") from error

    return call


def _scope(namespace: dict[str, Any], call: Call) -> dict[str, Any]:
    """The names that the expression sees: the program's, then those of the standard library."""
    scope = dict(namespace)
    for name in call["needs"]:
        scope[name] = find(namespace, name)
        if not call["direct"] and isinstance(scope[name], types.FunctionType):
            scope[name] = _guarded(scope[name])
    for name, module in call["library"]:
        if name not in scope:
            found = importlib.import_module(module)
            scope[name] = found if name == module else getattr(found, name)
    if call["setup"]:
        exec(compile(call["setup"], "setup", "exec", dont_inherit=True), scope)
    return scope


def evaluate(namespace: dict[str, Any], call: Call) -> dict[str, Any]:
    """The report on one call expression."""
    try:
        scope = _scope(namespace, call)
        with Printed(call["capture"]) as printed:
            value = eval(call["source"], scope)
            value = awaited(value) if call["awaits"] else value
        if call["ignores_value"]:
            value = None
        return {"value": values.encode(value), "printed": printed.text()}
    except BaseException as error:
        return {"error": describe(error)}


def answer_calls(request: CallsRequest, results: Any) -> None:
    """One line per call, each written before the next call begins."""
    program = Program(request["program"])

    def answer(index: int) -> None:
        call = request["calls"][index]
        report = {"error": program.failure} if program.failure else evaluate(program.namespace, call)
        results.write(json.dumps(report).encode() + b"\n")
        results.flush()

    program.run_each(len(request["calls"]), answer)


def serve_judge(request: JudgeRequest) -> None:
    """Answers a judge over descriptor 3, test by test."""
    # Boxes of plain calls never need it, and load faster without it.
    from verifiers.code.server import ObjectServer

    link = socket.socket(fileno=3).makefile("rwb")
    program = Program(request["program"])
    program.run_each(request["tests"], lambda index: ObjectServer(program, link, request["capture"]).serve())


def main() -> None:
    """Reads the request; gives the program an empty standard input and an output that is never read."""
    request = json.loads(sys.stdin.buffer.read())
    results = os.fdopen(os.dup(1), "wb")
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if "calls" in request:
        answer_calls(request, results)
    else:
        serve_judge(request)
    # Threads and exit handlers of the program have no say any more.
    os._exit(0)


if __name__ == "__main__":
    main()
