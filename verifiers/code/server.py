"""Serves a judge's operations on the program's objects, in the program's box (program.py). Objects stay
here; numbers travel.

Whatever it says is the program's word: the judge decodes it as data, and decides alone."""

import builtins
import importlib
import json
import operator
import os
from typing import Any

from verifiers.code import forms, values
from verifiers.code.program import Printed, awaited, describe, event_loop, find

_CONTAINERS = (list, dict, set, bytearray)


def _is_own(kind: type) -> bool:
    """Whether the program defined the class."""
    return getattr(kind, "__module__", None) == "solution"


def _shallow(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else list(value)


class ObjectServer:
    """One test's conversation."""

    def __init__(self, program: Any, link: Any, capture: bool) -> None:
        self._program = program
        self._link = link
        self._capture = capture
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._containers: list[Any] = []
        self._known: dict[int, int] = {}

    def serve(self) -> None:
        """Until the judge begins the next test or hangs up."""
        failure = self._program.failure
        self._send({"loaded": False, "error": failure} if failure else {"loaded": True})
        while True:
            message = self._receive()
            if message["operation"] == "end":
                return
            self._send(self._perform(message))

    def _send(self, message: dict[str, Any]) -> None:
        self._link.write(json.dumps(message).encode() + b"\n")
        self._link.flush()

    def _receive(self) -> dict[str, Any]:
        line = self._link.readline()
        if not line:
            os._exit(0)
        message: dict[str, Any] = json.loads(line)
        return message

    # What goes out.

    def _encode(self, value: Any) -> Any:
        return values.encode(value, self._keep, 0, self._special)

    def _number(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return number

    def _keep(self, value: Any) -> Any:
        kind = type(value)
        name = value.__name__ if isinstance(value, type) else ""
        return ["o", self._number(value), kind.__name__, name, isinstance(value, _CONTAINERS)]

    def _special(self, value: Any) -> Any:
        if id(value) in self._known:
            return ["=", self._known[id(value)]]
        kind = type(value)
        if kind in (list, dict, set, tuple):
            return None
        if isinstance(value, type) and issubclass(value, BaseException):
            return self._exception_class(value)
        if isinstance(value, BaseException):
            return ["e", self._exception(value)]
        if forms.is_named_tuple(value):
            items = [self._encode(item) for item in value]
            return ["n", kind.__name__, list(kind._fields), items, self._number(value)]
        found = forms.encode(value, self._encode)
        if found is None and _is_own(kind):
            if isinstance(value, (int, float, str, tuple, bytes, frozenset)):
                return ["v", self._number(value), kind.__name__, values.encode(value, self._keep)]
            return self._keep(value)
        return found

    def _exception_class(self, kind: type) -> Any:
        if getattr(builtins, kind.__name__, None) is kind:
            return kind.__name__ if kind is BaseException else ["x", None, kind.__name__, []]
        bases = [self._exception_class(base) for base in kind.__bases__ if issubclass(base, BaseException)]
        return ["x", self._number(kind), kind.__name__, bases]

    def _exception(self, error: BaseException) -> dict[str, Any]:
        ours = getattr(error, "_asyncrl_number", None)
        if isinstance(ours, int):
            return {"ours": ours}
        try:
            arguments = [self._encode(item) for item in error.args]
        except Exception:
            arguments = []
        try:
            text = str(error)
        except BaseException:
            text = "an exception that cannot be printed"
        own = _is_own(type(error)) or bool(error.__dict__)
        return {
            "class": self._exception_class(type(error)),
            "arguments": arguments,
            "text": text[:100_000],
            "number": self._number(error) if own else None,
        }

    # What comes in.

    def _decode(self, form: Any) -> Any:
        return values.decode(form, self._find_object)

    def _find_object(self, form: Any) -> Any:
        kind = form[0]
        if kind == "o":
            return self._objects[form[1]]
        if kind == "m":
            value = self._decode(form[2])
            self._containers.append((form[1], value, _shallow(value)))
            self._known[id(value)] = form[1]
            return value
        if kind == "cb":
            return self._callback(form[1], form[2])
        if kind == "e":
            return _builtin_exception(form[1], [self._decode(item) for item in form[2]])
        if kind == "g":
            found: Any = importlib.import_module(form[1])
            for name in form[2].split("."):
                found = getattr(found, name)
            return found
        return forms.decode(form, self._decode)

    def _callback(self, number: int, name: str) -> Any:
        def function(*arguments: Any, **keywords: Any) -> Any:
            return self._call_back(number, arguments, keywords)

        function.__name__ = function.__qualname__ = name
        return function

    def _call_back(self, number: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Calls a function that the test passed in."""
        words = {key: self._encode(item) for key, item in keywords.items()}
        listed = [self._encode(item) for item in arguments]
        self._send({"callback": number, "arguments": listed, "keywords": words})
        kept = self._containers, self._known
        while True:
            message = self._receive()
            if "returned" in message:
                self._containers, self._known = kept
                return self._decode(message["returned"])
            if "raised" in message:
                self._containers, self._known = kept
                error = _builtin_exception(message["raised"], [self._decode(x) for x in message["arguments"]])
                error._asyncrl_number = message["number"]  # type: ignore[attr-defined]
                raise error
            self._send(self._perform(message))

    def _operate(self, message: dict[str, Any]) -> Any:
        operation = message["operation"]
        arguments = [self._decode(item) for item in message["arguments"]]
        keywords = {key: self._decode(item) for key, item in message["keywords"].items()}
        if operation == "global":
            return find(self._program.namespace, arguments[0])
        target, *arguments = arguments
        if operation == "call":
            return target(*arguments, **keywords)
        if operation == "attribute":
            return getattr(target, arguments[0])
        if operation == "set_attribute":
            return setattr(target, arguments[0], arguments[1])
        if operation == "await":
            return event_loop().run_until_complete(_wait_for(target))
        if operation == "aiter":
            return target.__aiter__()
        if operation == "await_next":
            return awaited(_wait_for(target.__anext__()))
        if operation == "enter":
            return type(target).__enter__(target)
        if operation == "exit":
            error = arguments[0]
            return bool(type(target).__exit__(target, error and type(error), error, None))
        module, _, function = operation.partition(".")
        return getattr(importlib.import_module(module), function)(target, *arguments)

    def _perform(self, message: dict[str, Any]) -> dict[str, Any]:
        self._containers, self._known = [], {}
        with Printed(self._capture) as printed:
            try:
                if message["operation"] == "plain":
                    reply = {"value": values.encode(self._decode(message["arguments"][0]))}
                else:
                    reply = {"value": self._encode(self._operate(message))}
            except BaseException as error:
                reply = {"error": self._exception(error), "line": describe(error)}
        # Lists that a function changed in place change at the caller's end too.
        reply["changed"] = self._changed()
        reply["printed"] = printed.text()
        return reply

    def _changed(self) -> list[Any]:
        changed = []
        for number, value, before in self._containers:
            try:
                after = _shallow(value)
                if len(before) != len(after) or not all(map(operator.is_, before, after)):
                    changed.append([number, forms.container(value, self._encode)])
            except Exception:
                # Content that is no data leaves the caller's list as it was.
                continue
        return changed


async def _wait_for(target: Any) -> Any:
    return await target


def _builtin_exception(names: list[str], arguments: list[Any]) -> BaseException:
    """The nearest exception that the program can know."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(*arguments)
            except TypeError:
                break
    return RuntimeError(*map(str, arguments))
