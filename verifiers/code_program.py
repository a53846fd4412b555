"""Runs inside the sandbox, beside the untrusted program: loads it, then evaluates calls and reports plain
values.

Knows inputs only; expected values never come here. The program can tamper with all of this, and gains
nothing: it can only choose which values to report. Started as a script; its request is on standard input."""

import importlib
import json
import os
import socket
import sys
import types
from typing import Any

import code_values as values  # type: ignore[import-not-found]

_BUILTIN_ERRORS = (Exception,)


def load(source: str) -> tuple[dict[str, Any], str | None]:
    """The program's namespace, and the error it ended with. Its main block does not run."""
    module = types.ModuleType("solution")
    module.__file__ = "solution.py"
    sys.modules["solution"] = module
    try:
        exec(compile(source, "solution.py", "exec", dont_inherit=True), module.__dict__)
    except SystemExit:
        # What was defined before it left is there.
        return module.__dict__, None
    except BaseException as error:
        return module.__dict__, describe(error)
    return module.__dict__, None


def describe(error: BaseException) -> str:
    """One line about an exception."""
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:
        return "an exception that cannot be printed"


def find(namespace: dict[str, Any], name: str) -> Any:
    """What the program calls `name`: its global, or the method of its class Solution."""
    if name in namespace:
        return namespace[name]
    solution = namespace.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    raise NameError(f"name {name!r} is not defined")


def evaluate(namespace: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    """The report on one call expression."""
    try:
        for name in call["needs"]:
            namespace[name] = find(namespace, name)
        return {"value": values.encode(eval(call["source"], namespace))}
    except BaseException as error:
        return {"error": describe(error)}


def answer_calls(request: dict[str, Any], results: Any) -> None:
    """One line per call, each written before the next call begins."""
    namespace, failure = load(request["program"])
    for call in request["calls"]:
        report = {"error": failure} if failure else evaluate(namespace, call)
        results.write(json.dumps(report).encode() + b"\n")
        results.flush()


class Server:
    """Serves a judge's operations on the program's objects, over the link. Objects stay here; ids travel."""

    def __init__(self, namespace: dict[str, Any], link: Any) -> None:
        self._namespace = namespace
        self._link = link
        self._objects: list[Any] = []

    def _send(self, message: dict[str, Any]) -> None:
        self._link.write(json.dumps(message).encode() + b"\n")
        self._link.flush()

    def _receive(self) -> dict[str, Any]:
        line = self._link.readline()
        if not line:
            os._exit(0)
        message: dict[str, Any] = json.loads(line)
        return message

    def _encode(self, value: Any) -> Any:
        return values.encode(value, self._keep)

    def _keep(self, value: Any) -> Any:
        self._objects.append(value)
        return ["o", len(self._objects) - 1, type(value).__name__]

    def _find_object(self, form: Any) -> Any:
        kind, number = form[0], form[1]
        if kind == "o":
            return self._objects[number]
        if kind == "cb":
            return lambda *arguments: self._call_back(number, arguments)
        raise ValueError(f"unknown form {kind!r}")

    def _call_back(self, number: int, arguments: tuple[Any, ...]) -> Any:
        """Calls a function that the test passed in."""
        self._send({"callback": number, "arguments": [self._encode(item) for item in arguments]})
        while True:
            message = self._receive()
            if "returned" in message:
                return values.decode(message["returned"], self._find_object)
            if "raised" in message:
                raise RuntimeError(message["raised"])
            self._send(self._perform(message))

    def _operate(self, message: dict[str, Any]) -> tuple[Any, list[Any]]:
        operation = message["operation"]
        arguments = [values.decode(item, self._find_object) for item in message["arguments"]]
        keywords = {key: values.decode(item, self._find_object) for key, item in message["keywords"].items()}
        if operation == "global":
            return find(self._namespace, arguments[0]), []
        target, *arguments = arguments
        if operation == "call":
            return target(*arguments, **keywords), arguments
        if operation == "attribute":
            return getattr(target, arguments[0]), []
        if operation == "set_attribute":
            setattr(target, arguments[0], arguments[1])
            return None, []
        module, _, function = operation.partition(".")
        return getattr(importlib.import_module(module), function)(target, *arguments), []

    def _perform(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            value, arguments = self._operate(message)
            # Lists that a function changed in place change at the caller's end too.
            return {"value": self._encode(value), "arguments": [self._encode(item) for item in arguments]}
        except StopIteration:
            return {"error": ["StopIteration", ""]}
        except BaseException as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            return {"error": [*names[:8], describe(error)]}

    def serve(self) -> None:
        """Until the judge hangs up."""
        while True:
            self._send(self._perform(self._receive()))


def main() -> None:
    """Reads the request; gives the program an empty standard input and an output that nobody reads."""
    request = json.loads(sys.stdin.buffer.read())
    results = os.fdopen(os.dup(1), "wb")
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if "calls" in request:
        answer_calls(request, results)
        # Threads and exit handlers of the program have no say any more.
        os._exit(0)
    link = socket.socket(fileno=3).makefile("rwb")
    namespace, failure = load(request["program"])
    server = Server(namespace, link)
    if failure:
        server._send({"loaded": False, "error": failure})
        os._exit(0)
    server._send({"loaded": True})
    server.serve()


if __name__ == "__main__":
    main()
