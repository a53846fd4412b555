"""The tests of one code task, as typed values: what a data row's gold says, checked when it is loaded."""

import ast
import builtins
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sandbox.command import LANGUAGES, Limits, find_language, parse_limits
from verifiers import strict_json
from verifiers.code.compare import WHITESPACE, same_output
from verifiers.code.names import KNOWN, complaint, free_names, judges, program_names, queries_result
from verifiers.code.program import Call
from verifiers.golds import missing_inside


def expected_value(text: Any, where: str) -> Any:
    """A Python or JSON literal in a string, or JSON itself. Raises ValueError, also for NaN and infinity."""
    value = _literal(text, where) if isinstance(text, str) else text
    if found := missing_inside(value):
        raise ValueError(
            f"{where} expects {found}, which is not a value (NaN equals nothing, not even itself); write an "
            "assert statement, such as assert math.isnan(f()) or assert f() == float('inf') with import math"
        )
    return value


def _literal(text: str, where: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    try:
        return strict_json.loads(text)
    except ValueError:
        hint = f"quote a string, as in \"'{text[:20]}'\""
        raise ValueError(
            f"{where} expects {text[:80]!r}, which is not a Python or JSON literal; {hint}"
        ) from None


def contains_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(contains_float, value.values()))
    if isinstance(value, list | tuple):
        return any(map(contains_float, value))
    return isinstance(value, float)


_KEYS = ("tests", "setup", "lang", "limits", "checker", "whitespace", "scoring", "solution")
Scoring = Literal["all", "fraction"]
SCORINGS: tuple[Scoring, ...] = get_args(Scoring)
MAX_EXPECTED_MEMBERS = 200_000
"""Limit for the expected value of a call, which is compared on the host. A judge in its box compares any."""


@dataclass(frozen=True)
class StdinTest:
    """Input on standard input, output on standard output."""

    stdin: bytes
    stdout: str


@dataclass(frozen=True)
class CallTest:
    """An expression evaluated in the program's namespace, and the value it must have."""

    source: str
    expected: Any
    relation: str = "same"
    """"same" by compare.py, "any"; of an assert statement "equal" (==), "identical" (is), "true", "false"."""
    needs: tuple[str, ...] = ()
    """Names that the program must define, itself or as a method of its class Solution."""
    library: tuple[tuple[str, str], ...] = ()
    """(name, module of the standard library) that the expression also uses."""
    setup: str = ""
    """Statements that run before it, in the program's namespace."""
    stdout: str | None = None
    """Text that the call must print, if that counts."""
    is_direct: bool = True
    """One call with nothing but inputs in it."""

    def request(self) -> Call:
        """The call as the program's box gets it: nothing of what is expected."""
        return {
            "source": self.source,
            "needs": self.needs,
            "library": self.library,
            "setup": self.setup,
            "direct": self.is_direct,
            "awaits": self.relation in ("same", "any"),
            "capture": self.stdout is not None,
            "ignores_value": self.relation == "any",
        }


@dataclass(frozen=True)
class AssertTest:
    """Statements that must run through, with one check at least."""

    source: str
    needs: tuple[str, ...] = ()
    """Names that it asks the program for."""


CodeTest = StdinTest | CallTest | AssertTest


@dataclass(frozen=True)
class Checker:
    """A program that decides on outputs where several are valid: exit code 0 accepts. Its working directory
    holds input.txt, output.txt (the program's) and expected.txt."""

    source: str
    lang: str


@dataclass(frozen=True)
class CodeReference:
    """One task's tests and how to apply them; None leaves a choice to the verifier's options."""

    tests: tuple[CodeTest, ...]
    lang: str
    limits: Limits
    checker: Checker | None = None
    whitespace: str | None = None
    scoring: str | None = None
    solution: str | None = None
    """A program that passes, if the row has one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that the tests ask the program for; empty where it is run as a whole."""
        found = {name for test in self.tests if not isinstance(test, StdinTest) for name in test.needs}
        return tuple(sorted(found))


def _parse(source: Any, mode: str, where: str) -> ast.AST:
    if not isinstance(source, str):
        raise ValueError(f"{where} is {source!r}; expected Python source as a string")
    try:
        return compile(source.strip(), "test", mode, ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where} does not parse: {source[:80]!r}: {error}") from None


def _root_names(tree: ast.AST) -> tuple[str, ...]:
    """The function of a plain call, if it is a name: `f` in f(1, 2)."""
    if isinstance(tree, ast.Expression):
        tree = tree.body
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        return (tree.func.id,)
    return ()


def _is_literal(node: ast.AST) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _is_input(node: ast.expr) -> bool:
    """A literal, a builtin such as int by its name, or a list, tuple, set or dict of these."""
    if isinstance(node, ast.Name):
        return hasattr(builtins, node.id)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return all(map(_is_input, node.elts))
    return _is_literal(node)


def _is_direct_call(node: ast.AST) -> bool:
    """f(inputs) or Solution().f(inputs)."""
    if not isinstance(node, ast.Call) or queries_result(node):
        return False
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    if not all(map(_is_input, arguments)) or any(keyword.arg is None for keyword in node.keywords):
        return False
    if isinstance(node.func, ast.Name):
        return True
    return isinstance(node.func, ast.Attribute) and _is_direct_call(node.func.value)


def _is_large(text: str) -> bool:
    return text.count(",") > MAX_EXPECTED_MEMBERS


def _direct(statement: ast.stmt) -> CallTest | None:
    """The common `assert f(1) == 2` as a call test: its expected value can stay on the
    host, without a judge."""
    if not isinstance(statement, ast.Assert):
        return None
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and _is_literal(test.comparators[0]):
        relation = {ast.Eq: "equal", ast.Is: "identical"}.get(type(test.ops[0]))
        call, expected = test.left, ast.literal_eval(test.comparators[0])
        if relation == "identical" and not (expected is None or isinstance(expected, bool)):
            return None
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        relation, call, expected = "false", test.operand, None
    else:
        relation, call, expected = "true", test, None
    if relation is None or not _is_direct_call(call) or _is_large(ast.unparse(test)):
        return None
    needs = _root_names(call)
    if relation in ("true", "false") and any(hasattr(builtins, name) for name in needs):
        # `assert isinstance(...)`, `assert all(...)`: a builtin judges, so it must be the judge's.
        return None
    return CallTest(ast.unparse(call), expected, relation, needs)


class _Setup:
    """Statements of the row that each of its tests begins with."""

    def __init__(self, source: Any) -> None:
        tree = _parse(source or "", "exec", "setup")
        assert isinstance(tree, ast.Module)
        self.source = str(source or "").strip()
        self.needs = program_names(tree)
        read, _ = free_names(tree)
        every = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self.defines = (every - read) | {
            str(getattr(node, "name", None) or getattr(node, "asname", None)) for node in ast.walk(tree)
        }

    def before(self, source: str) -> str:
        return f"{self.source}\n{source}" if self.source else source


def _assert_tests(source: Any, where: str, setup: _Setup) -> list[CodeTest]:
    tree = _parse(source, "exec", where)
    assert isinstance(tree, ast.Module)
    if not tree.body:
        raise ValueError(f"{where} is empty; expected assert statements")
    direct = [_direct(statement) for statement in tree.body]
    found = [test for test in direct if test is not None]
    # Statements that depend on each other stay together, and with a setup that does something.
    if len(found) == len(direct) == 1 and not setup.needs and not setup.defines & set(found[0].needs):
        return list(found)
    whole = setup.before(source.strip())
    tree = _parse(whole, "exec", where)
    assert isinstance(tree, ast.Module)
    if reason := complaint(tree):
        raise ValueError(f"{where} says nothing about a program: {reason}")
    return [AssertTest(whole, program_names(tree))]


def _judged_call(raw: dict[str, Any], where: str, setup: _Setup) -> CodeTest:
    """A call that compares for itself, as an assert statement: in the program's box, its classes
    and the names it replaced would decide."""
    source = raw["call"].strip()
    if "stdout" in raw:
        raise ValueError(
            f"{where} calls {source[:80]!r}, which compares values in the program's box; with stdout give "
            "a call that does not, or write an assert statement"
        )
    expected = expected_value(raw["expect"], where)
    due, imported = repr(expected), ""
    if not _is_literal(ast.parse(due, mode="eval").body):
        raise ValueError(f"{where} expects {due[:80]} of {source[:80]!r}; write an assert statement")
    if contains_float(expected):
        due, imported = f"pytest.approx({due})", "import pytest\n"
    [test] = _assert_tests(f"{imported}assert (\n{source}\n) == {due}", where, setup)
    return test


def _call_test(raw: dict[str, Any], where: str, setup: _Setup) -> CodeTest:
    tree = _parse(raw["call"], "eval", f"{where}: call")
    assert isinstance(tree, ast.Expression)
    needs = tuple(name for name in program_names(tree) if name not in setup.defines)
    is_direct = _is_direct_call(tree.body)
    if not needs and is_direct and not set(_root_names(tree)) & (setup.defines | set(KNOWN)):
        # A function that has a builtin's name: the program must define its own.
        needs = _root_names(tree)
    if not needs and not setup.needs:
        raise ValueError(
            f"{where} calls {raw['call'][:80]!r}, which asks nothing of the program: every name in it is a "
            "builtin's, the standard library's or the setup's"
        )
    expected = raw.get("expect")
    if _is_large(expected if isinstance(expected, str) else json.dumps(expected)):
        raise ValueError(f"{where} expects more than {MAX_EXPECTED_MEMBERS} members; use an assert statement")
    stdout = raw.get("stdout")
    if stdout is not None and not isinstance(stdout, str):
        raise ValueError(f"{where} has stdout {stdout!r}; expected a string")
    if judges(tree.body, {*needs, *setup.defines}):
        return _judged_call(raw, where, setup)
    return CallTest(
        raw["call"].strip(),
        expected_value(expected, where) if "expect" in raw else None,
        "same" if "expect" in raw else "any",
        tuple(sorted({*needs, *setup.needs})),
        _library(tree),
        setup.source,
        stdout,
        is_direct,
    )


def _library(tree: ast.AST) -> tuple[tuple[str, str], ...]:
    names, bases = free_names(tree)
    modules = [(name, name) for name in names if name in bases and name in sys.stdlib_module_names]
    return tuple(sorted([*modules, *((name, KNOWN[name]) for name in names if name in KNOWN)]))


def _parse_test(raw: Any, where: str, setup: _Setup) -> list[CodeTest]:
    if isinstance(raw, str):
        return _assert_tests(raw, where, setup)
    if not isinstance(raw, dict):
        raise ValueError(
            f"{where} is {raw!r}; expected an object with stdin and stdout, call and expect, or assert"
        )
    keys = set(raw)
    if keys == {"stdin", "stdout"} or keys == {"stdout"}:
        given = {"stdin": "", **raw}
        for key, value in given.items():
            if not isinstance(value, str):
                raise ValueError(f"{where} has {key} {value!r}; expected a string")
        return [StdinTest(given["stdin"].encode("utf-8", "surrogatepass"), given["stdout"])]
    if "call" in keys and keys & {"expect", "stdout"} and keys <= {"call", "expect", "stdout"}:
        return [_call_test(raw, where, setup)]
    if keys == {"assert"}:
        return _assert_tests(raw["assert"], f"{where}: assert", setup)
    raise ValueError(
        f"{where} has the keys {sorted(keys)}; expected stdin and stdout, call and expect, or assert"
    )


def _parse_checker(raw: Any) -> Checker | None:
    if raw is None:
        return None
    if isinstance(raw, str):
        raw = {"source": raw}
    if not isinstance(raw, dict) or not isinstance(raw.get("source"), str) or set(raw) - {"source", "lang"}:
        raise ValueError(f"checker is {raw!r}; expected an object with source and, if it is not Python, lang")
    lang = raw.get("lang", "python")
    find_language(lang)
    return Checker(raw["source"], lang)


def _check_not_silent(tests: Sequence[CodeTest], whitespace: str) -> None:
    """Raises ValueError where a program that does nothing and prints nothing would pass all tests."""
    for test in tests:
        asks_output_only = isinstance(test, StdinTest) or (
            isinstance(test, CallTest) and test.relation == "any" and test.stdout is not None
        )
        due = getattr(test, "stdout", None) or ""
        if not asks_output_only or not same_output(due, b"", whitespace=whitespace):
            return
    raise ValueError(
        "every test expects that nothing is printed, so a program that does nothing passes; give a test "
        "whose stdout is not empty, a call with expect, or a checker"
    )


def parse_code_reference(
    raw: object, *, lang: str, limits: Limits, whitespace: str = "lines"
) -> CodeReference:
    """A data row's gold, an object or its JSON text; `lang`, `limits` and `whitespace` where it has none.

    Raises ValueError that names what is wrong."""
    if isinstance(raw, str):
        try:
            raw = strict_json.loads(raw)
        except ValueError as error:
            raise ValueError(f"the gold of a code task is not JSON: {error}") from None
    if isinstance(raw, list):
        raw = {"tests": raw}
    if not isinstance(raw, dict):
        raise ValueError(f"the gold of a code task is {raw!r}; expected an object with tests")
    for key in raw:
        if key not in _KEYS:
            raise ValueError(
                f"the gold of a code task has the unknown key {key!r}; expected {', '.join(_KEYS)}"
            )
    tests = raw.get("tests")
    if not isinstance(tests, list) or not tests:
        raise ValueError(f"tests is {tests!r}; expected a list with at least one test")
    setup = _Setup(raw.get("setup"))
    parsed = [
        test for index, item in enumerate(tests) for test in _parse_test(item, f"test {index + 1}", setup)
    ]
    if setup.source and all(isinstance(test, StdinTest) for test in parsed):
        raise ValueError("setup is for call and assert tests; these have stdin and stdout only")
    chosen = raw.get("lang") or lang
    if not isinstance(chosen, str):
        raise ValueError(f"lang is {chosen!r}; expected one of {', '.join(sorted(LANGUAGES))}")
    language = find_language(chosen)
    name = next(key for key, value in LANGUAGES.items() if value is language)
    if name != "python" and not all(isinstance(test, StdinTest) for test in parsed):
        raise ValueError(
            f"lang is {chosen!r}, but call and assert tests are for Python; use stdin and stdout"
        )
    for key, allowed in (("whitespace", WHITESPACE), ("scoring", SCORINGS)):
        if raw.get(key) is not None and raw[key] not in allowed:
            raise ValueError(f"{key} is {raw[key]!r}; expected one of {', '.join(allowed)}")
    checker = _parse_checker(raw.get("checker"))
    if checker is None:
        _check_not_silent(parsed, raw.get("whitespace") or whitespace)
    solution = raw.get("solution")
    if solution is not None and not isinstance(solution, str):
        raise ValueError(f"solution is {solution!r}; expected a program's source")
    return CodeReference(
        tests=tuple(parsed),
        lang=name,
        limits=parse_limits(raw.get("limits") or {}, limits),
        checker=checker,
        whitespace=raw.get("whitespace"),
        scoring=raw.get("scoring"),
        solution=solution,
    )
