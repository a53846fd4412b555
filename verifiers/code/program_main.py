"""Runs inside the sandbox, next to the untrusted program: evaluates calls and reports plain values, or serves
a judge.

Knows inputs only; expected values never come here. The program can tamper with all of this, and gains
nothing: it can only choose which values to report."""

import functools
import importlib
import json
import os
import socket
import sys
import types
from typing import Any, TypedDict

from verifiers.code import values
from verifiers.code.program import Printed, Program, awaited, describe, find


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
