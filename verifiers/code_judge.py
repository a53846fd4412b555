"""Runs inside a second sandbox: executes assert-style tests, whose names stand for the untrusted program's
objects.

The program lives in another box and is asked over a socket; only plain data or opaque references come back.
So the tests' expected values stay here, and builtins, assert and comparison are this interpreter's own.

An object that a test builds by a capitalised name (`Stack()`) is the program's to define, operators included,
against others of its kind. Anything else the program returns that is not data equals nothing and compares
with nothing."""

import ast
import builtins
import collections
import decimal
import fractions
import importlib
import json
import os
import socket
import sys
from typing import Any, NoReturn

import code_values as values  # type: ignore[import-not-found]

_KNOWN = {
    **{
        name: getattr(collections, name)
        for name in ("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple")
    },
    "Fraction": fractions.Fraction,
    "Decimal": decimal.Decimal,
}
"""Names from the standard library that tests use without importing; the program's of that name are not
asked."""


class ProgramError(Exception):
    """An exception of the program's own class."""


class Gone(BaseException):
    """The program has ended."""


class Link:
    """The conversation with the program's box."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._callbacks: list[Any] = []

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._stream.write(json.dumps(message).encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            raise Gone("the program has ended") from error

    def receive(self) -> dict[str, Any]:
        try:
            line = self._stream.readline()
        except OSError as error:
            raise Gone("the program has ended") from error
        if not line.endswith(b"\n"):
            raise Gone("the program has ended")
        message = values.loads(line)
        if not isinstance(message, dict):
            raise Gone("the program's box wrote nonsense")
        return message

    def encode(self, value: Any) -> Any:
        def other(item: Any) -> Any:
            if isinstance(item, Reference):
                return ["o", object.__getattribute__(item, "_number")]
            if callable(item):
                self._callbacks.append(item)
                return ["cb", len(self._callbacks) - 1]
            return values.encode(item)

        return values.encode(value, other)

    def ask(self, operation: str, *arguments: Any, made: bool = False, **keywords: Any) -> Any:
        """The program's value; its exceptions are raised here, its callbacks answered meanwhile."""
        forms = [self.encode(item) for item in arguments]
        words = {key: self.encode(item) for key, item in keywords.items()}
        self.send({"operation": operation, "arguments": forms, "keywords": words})
        while True:
            reply = self.receive()
            if "callback" in reply:
                self.send(self._answer(reply))
                continue
            if "error" in reply:
                _raise(reply["error"])
            value = values.decode(reply.get("value"), lambda form: Reference(self, form, made))
            for ours, form in zip(arguments[1:], reply.get("arguments") or [], strict=False):
                _update(ours, form, self)
            return value

    def _answer(self, reply: dict[str, Any]) -> dict[str, Any]:
        try:
            function = self._callbacks[int(reply["callback"])]
            arguments = [
                values.decode(item, lambda form: Reference(self, form, False)) for item in reply["arguments"]
            ]
            return {"returned": self.encode(function(*arguments))}
        except Exception as error:
            return {"raised": f"{type(error).__name__}: {error}"[:300]}


def _update(ours: Any, form: Any, link: Link) -> None:
    """Brings a list, dict, set or bytearray that the program changed in place up to date."""
    if not isinstance(ours, list | dict | set | bytearray):
        return
    theirs: Any = values.decode(form, lambda item: Reference(link, item, False))
    if type(theirs) is not type(ours):
        return
    target: Any = ours
    target.clear()
    fill = target.extend if isinstance(ours, list | bytearray) else target.update
    fill(theirs)


def _raise(error: Any) -> NoReturn:
    """Raises the nearest builtin exception; never one that would end the judge or pass for its own."""
    *names, text = [str(item) for item in error]
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind not in (Exception, AssertionError):
            raise kind(text)
    raise ProgramError(text)


def _number_of(form: Any) -> int:
    if isinstance(form, list) and len(form) == 3 and form[0] == "o" and isinstance(form[1], int):
        return form[1]
    raise values.NotPlain("no encoded value")


class Reference:
    """An object of the program. `made`: the test built it by a class name, so its operators are under
    test."""

    def __init__(self, link: Link, form: Any, made: bool) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", _number_of(form))
        object.__setattr__(self, "_kind", str(form[2])[:80])
        object.__setattr__(self, "_made", made)

    def _ask(self, operation: str, *arguments: Any, made: bool = False, **keywords: Any) -> Any:
        link: Link = object.__getattribute__(self, "_link")
        return link.ask(operation, self, *arguments, made=made, **keywords)

    def _compare(self, operation: str, other: Any) -> Any:
        both = isinstance(other, Reference) and object.__getattribute__(other, "_made")
        if not (both and object.__getattribute__(self, "_made")):
            kind = object.__getattribute__(self, "_kind")
            raise TypeError(f"the program returned an object of type {kind}, which is not data")
        return self._ask(operation, other, made=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set_attribute", name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._ask("call", *arguments, made=object.__getattribute__(self, "_made"), **keywords)

    def __eq__(self, other: object) -> Any:
        return self._compare("operator.eq", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("operator.ne", other)

    __hash__ = object.__hash__

    def __lt__(self, other: Any) -> Any:
        return self._compare("operator.lt", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare("operator.gt", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("operator.le", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare("operator.ge", other)

    def __add__(self, other: Any) -> Any:
        return self._compare("operator.add", other)

    def __sub__(self, other: Any) -> Any:
        return self._compare("operator.sub", other)

    def __mul__(self, other: Any) -> Any:
        return self._compare("operator.mul", other)

    def __len__(self) -> int:
        return int(self._ask("builtins.len"))

    def __bool__(self) -> bool:
        return bool(self._ask("builtins.bool") is True)

    def __str__(self) -> str:
        return str(self._ask("builtins.str"))

    def __repr__(self) -> str:
        return str(self._ask("builtins.repr"))

    def __getitem__(self, index: Any) -> Any:
        return self._ask("operator.getitem", index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._ask("operator.setitem", index, value)

    def __iter__(self) -> Any:
        return self._ask("builtins.iter")

    def __next__(self) -> Any:
        return self._ask("builtins.next")

    def __contains__(self, item: Any) -> bool:
        if not object.__getattribute__(self, "_made"):
            raise TypeError("the program returned an object, which is not data")
        return self._ask("operator.contains", item) is True


def free_names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """(names that the test reads but does not define, those of them that it only takes attributes of)."""
    bound: set[str] = set()
    read: set[str] = set()
    bases: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            bases.add(node.value.id)
    return read - bound, bases


def namespace_for(source: str, link: Link) -> dict[str, Any]:
    """The globals of a test. Builtins are never the program's: it could replace the very comparison."""
    names, bases = free_names(ast.parse(source))
    namespace: dict[str, Any] = {"__name__": "test", "__builtins__": builtins}
    for name in sorted(names):
        if hasattr(builtins, name):
            continue
        if name in bases and name in sys.stdlib_module_names:
            namespace[name] = importlib.import_module(name)
        elif name in _KNOWN:
            namespace[name] = _KNOWN[name]
        else:
            namespace[name] = link.ask("global", name, made=name[:1].isupper())
    return namespace


def run_test(source: str, link: Link) -> str | None:
    """None when the test passes, else why not."""
    try:
        exec(compile(source, "test", "exec", dont_inherit=True), namespace_for(source, link))
        return None
    except AssertionError as error:
        return f"assertion failed{f': {error}' if str(error) else ''}"[:300]
    except Gone:
        raise
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]


def main() -> None:
    """Reads the tests from standard input, writes one line per test."""
    request = json.loads(sys.stdin.buffer.read())
    link = Link(socket.socket(fileno=3).makefile("rwb"))
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        first = link.receive()
        for source in request["tests"]:
            failure = run_test(source, link) if first.get("loaded") is True else str(first.get("error"))
            results.write(json.dumps({"passed": failure is None, "why": failure}).encode() + b"\n")
            results.flush()
            if failure is not None and request["early_stop"]:
                break
    except (Gone, values.NotPlain) as gone:
        results.write(json.dumps({"passed": False, "why": str(gone)}).encode() + b"\n")
        results.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
