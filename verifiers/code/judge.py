"""Runs inside a second sandbox: executes assert-style tests, whose names stand for the untrusted program's
objects (link.py).

The program lives in another box and is asked over a socket; only plain data or opaque references come back.
So the tests' expected values stay here, and builtins, assert and comparison are this interpreter's own.

A test passes when it runs through and at least one of its checks was made: an assertion that nothing reached
shows nothing. Functions and classes that a runner such as pytest or unittest would collect are run."""

import ast
import builtins
import functools
import importlib
import json
import os
import socket
import sys
import types
from _frozen_importlib import ModuleSpec  # importing importlib.machinery would take longer than a test
from collections.abc import Callable
from typing import Any, TypedDict

from verifiers.code import names, values
from verifiers.code.link import Gone, Link
from verifiers.code.reference import Reference

_MARK = "_asyncrl_checked"


class TestsRequest(TypedDict):
    """Tests to run, one after the other; with `early_stop` up to the first that fails."""

    tests: list[str]
    early_stop: bool


class _Counter(ast.NodeTransformer):
    """Adds a call after each assertion and after each statement that would have failed the test, around each
    check by a function such as self.assertEqual, and at the start of each except clause."""

    def __init__(self, tree: ast.AST) -> None:
        self.has_checks = False
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        self._own = {node.name for node in ast.walk(tree) if isinstance(node, functions)}

    def _call(self, node: Any, *arguments: ast.expr) -> Any:
        call = ast.Call(ast.Name(_MARK, ast.Load()), list(arguments), [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _mark(self, node: Any) -> ast.stmt:
        return ast.copy_location(ast.Expr(self._call(node)), node)

    def visit_Assert(self, node: ast.Assert) -> Any:
        if names.is_constant_assert(node):
            return node
        self.has_checks = True
        return [node, self._mark(node)]

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        # What the test defines itself is marked inside: a loop there may check nothing.
        if not names.is_checking_call(node) or names.called(node) in self._own:
            return node
        self.has_checks = True
        return self._call(node, node)

    def _visit_guard(self, node: Any) -> Any:
        """`if wrong: raise ...`, `for ...: ... else: raise ...`: passing it by is the check."""
        guards = names.is_guard(node)
        self.generic_visit(node)
        self.has_checks |= guards
        return [node, self._mark(node)] if guards else node

    visit_If = visit_For = visit_AsyncFor = visit_While = visit_Match = _visit_guard

    def visit_Try(self, node: ast.Try) -> Any:
        self.has_checks |= any(map(names.is_failure, [*node.body, *node.orelse]))
        self.generic_visit(node)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        self.generic_visit(node)
        node.body.insert(0, self._mark(node))
        return node


class _ProgramModule:
    """`from solution import f` and the like: the module is the program."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in names.PROGRAM_MODULES:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return types.ModuleType(spec.name)

    def exec_module(self, module: Any) -> None:
        def get(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _global(self._link, name)

        module.__all__ = []
        module.__getattr__ = get


def _global(link: Link, name: str) -> Any:
    return link.ask("global", name, made=name[:1].isupper())


def _namespace(tree: ast.AST, link: Link) -> dict[str, Any]:
    """The globals of a test. Builtins are never the program's: it could replace the very comparison."""
    found, bases = names.free_names(tree)
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    for name in sorted(found):
        if hasattr(builtins, name) or name in namespace:
            continue
        if names.is_module(name, bases):
            namespace[name] = importlib.import_module(name)
        elif name in names.KNOWN:
            namespace[name] = getattr(importlib.import_module(names.KNOWN[name]), name)
        else:
            namespace[name] = _global(link, name)
    return namespace


@functools.cache
def _teach_asyncio() -> None:
    """asyncio.run and create_task take the program's coroutines too."""
    import asyncio

    def accepting(function: Callable[..., Any]) -> Callable[..., Any]:
        async def wait(reference: Reference) -> Any:
            return await reference

        def call(main: Any, *arguments: Any, **keywords: Any) -> Any:
            is_reference = isinstance(main, Reference)
            return function(wait(main) if is_reference else main, *arguments, **keywords)

        return call

    for name in ("run", "create_task"):
        setattr(asyncio, name, accepting(getattr(asyncio, name)))


def _prepare(source: str, link: Link) -> None:
    """Prepares imports, so that the test finds our modules."""
    for name in names.PROGRAM_MODULES:
        sys.modules.pop(name, None)
    sys.meta_path[:] = [item for item in sys.meta_path if not isinstance(item, _ProgramModule)]
    sys.meta_path.insert(0, _ProgramModule(link))
    if "pytest" in source:
        from verifiers.code import pytest_stand_in

        sys.modules["pytest"] = pytest_stand_in
    if "unittest" in source:
        import unittest

        # The collected tests are run below.
        setattr(unittest, "main", lambda *arguments, **keywords: None)  # noqa: B010
    if "asyncio" in source:
        _teach_asyncio()
    for kind in _catchers(source):
        _report_catches(kind, link)


def _catchers(source: str) -> list[Any]:
    """Classes of contexts that catch an exception which the test names."""
    found: list[Any] = []
    if "pytest" in source:
        from verifiers.code import pytest_stand_in

        found.append(pytest_stand_in._Raises)
    if "unittest" in source:
        from unittest import case

        found.append(case._AssertRaisesContext)
    if "suppress" in source:
        import contextlib

        found.append(contextlib.suppress)
    return found


def _report_catches(kind: Any, link: Link) -> None:
    """Lets contexts of the class tell the link which exceptions they caught."""
    if not hasattr(kind, "_asyncrl_exit"):
        kind._asyncrl_exit = kind.__exit__

    def leave(self: Any, *error: Any) -> Any:
        is_caught = kind._asyncrl_exit(self, *error)
        if is_caught:
            link.caught(error[1])
        return is_caught

    kind.__exit__ = leave


def _run_case(case: type) -> None:
    """Every test of a unittest.TestCase. Raises AssertionError for the first that fails."""
    import unittest

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    problems = [*result.failures, *result.errors]
    if problems or not result.wasSuccessful():
        lines = problems[0][1].strip().splitlines() if problems else ["an unexpected success"]
        raise AssertionError(lines[-1])
    for test, reason in result.skipped:
        method = getattr(test, getattr(test, "_testMethodName", ""), None)
        if not (getattr(method, "__unittest_skip__", False) or getattr(test, "__unittest_skip__", False)):
            # Only a decorator's word does not depend on the program.
            raise AssertionError(f"a test was skipped: {reason}")


def _run_collected(node: ast.stmt, namespace: dict[str, Any]) -> None:
    item = namespace[getattr(node, "name", "")]
    if isinstance(node, ast.ClassDef) and hasattr(item, "assertEqual"):
        _run_case(item)
        return
    from verifiers.code import pytest_stand_in

    if isinstance(node, ast.ClassDef):
        for name in [name for name in vars(item) if name.startswith("test")]:
            instance = item()
            getattr(instance, "setup_method", lambda *_: None)(*_wanted(item, "setup_method"))
            pytest_stand_in.run(getattr(instance, name))
            getattr(instance, "teardown_method", lambda *_: None)(*_wanted(item, "teardown_method"))
    else:
        pytest_stand_in.run(item)


def _wanted(item: type, name: str) -> list[None]:
    """pytest passes the method to setup_method(self, method), if it takes it."""
    function = getattr(item, name, None)
    return [None] * (function.__code__.co_argcount - 1) if isinstance(function, types.FunctionType) else []


def _execute(source: str, link: Link) -> None:
    """Runs the test. Raises what it raises, AssertionError when it checked nothing."""
    tree = ast.parse(source)
    tests = names.collected(tree)
    num_checks = 0

    def checked(value: Any = None) -> Any:
        nonlocal num_checks
        num_checks += 1
        link.caught(sys.exc_info()[1])
        return value

    _prepare(source, link)
    namespace = _namespace(tree, link) | {_MARK: checked}
    counter = _Counter(tree)
    exec(compile(counter.visit(tree), "test", "exec", dont_inherit=True), namespace)
    for node in tests:
        _run_collected(node, namespace)
    if counter.has_checks and not num_checks:
        raise AssertionError("none of its assertions was reached")


def run_test(source: str, link: Link) -> str | None:
    """None when the test passes, else why not."""
    before = sys.stdout
    try:
        _execute(source, link)
        if link.failed is not None:
            return f"{type(link.failed).__name__}: {link.failed}"[:300]
        if link.stops:
            # Nobody caught it: a `map` or a loop took it for the end of the data.
            return f"the function raised {type(link.stops[0]).__name__}"
        return None
    except AssertionError as error:
        return f"assertion failed{f': {error}' if str(error) else ''}"[:300]
    except Gone:
        raise
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        sys.stdout = before


def _judge(source: str, stream: Any) -> str | None:
    link = Link(stream, expects_stop="StopIteration" in source or "StopAsyncIteration" in source)
    first = link.receive()
    failure = run_test(source, link) if first.get("loaded") is True else str(first.get("error"))
    link.send({"operation": "end"})
    return failure


def main() -> None:
    """Reads the tests from standard input, writes one line per test."""
    request: TestsRequest = json.loads(sys.stdin.buffer.read())
    stream = socket.socket(fileno=3).makefile("rwb")
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        for source in request["tests"]:
            failure = _judge(source, stream)
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
