"""Names in a test's source: which of them are the program's, and which of its code never runs.

Imported on the host and, by file, in the judge's box (judge.py), so it needs the standard library only."""

import ast
import builtins
import sys
from collections.abc import Collection, Iterator
from typing import Any

PROGRAM_MODULES = frozenset(
    "solution main program submission candidate answer my_solution your_solution your_module".split()
)
"""`from solution import f` asks the program for f."""

KNOWN = {
    "Counter": "collections",
    "OrderedDict": "collections",
    "defaultdict": "collections",
    "deque": "collections",
    "namedtuple": "collections",
    "Fraction": "fractions",
    "Decimal": "decimal",
}
"""Names from the standard library that tests use without importing; the program's of that
name are not asked."""

QUERIES = frozenset(
    name
    for kind in (str, bytes, tuple, frozenset, int, float)
    for name in dir(kind)
    if name.startswith(("is", "find", "rfind", "index", "rindex", "count", "startswith", "endswith", "bit_"))
)
"""Methods of builtin types that give a truth or a number: of an object that the program returned, its class
would decide about what the test expects."""

_CHECKS = ("assert", "fail", "raises")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def free_names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """(names that the test reads but does not define, those of them that it only takes attributes of)."""
    bound: set[str] = set()
    read: set[str] = set()
    bases: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
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


def is_module(name: str, bases: set[str]) -> bool:
    """Whether a free name is a module of the standard library: the test takes attributes of it."""
    return name in bases and name in sys.stdlib_module_names


def program_names(tree: ast.AST) -> tuple[str, ...]:
    """Names that the test asks the program for, sorted. Builtins and the standard library are never the
    program's."""
    names, bases = free_names(tree)
    found = {
        name
        for name in names
        if not hasattr(builtins, name) and name not in KNOWN and not is_module(name, bases)
    }
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in PROGRAM_MODULES:
            found |= {alias.name for alias in node.names if alias.name != "*"}
        elif isinstance(node, ast.Import):
            imported = (alias for alias in node.names if alias.name in PROGRAM_MODULES)
            modules |= {alias.asname or alias.name for alias in imported}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found.add(node.attr)
    return tuple(sorted(found - {"__name__", "__file__"}))


def _loaded(tree: ast.AST, outside: ast.AST | None = None) -> set[str]:
    """Names that are read; `outside` leaves the inside of one function out."""
    inside = set(map(id, ast.walk(outside))) if outside else set()
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside
    }


def _is_check(node: ast.AST) -> bool:
    if isinstance(node, (ast.Assert, ast.Raise)):
        return True
    if isinstance(node, ast.Call):
        return called(node).lower().lstrip("_").startswith(_CHECKS)
    return False


def is_constant_assert(node: ast.AST) -> bool:
    """`assert False` and its like: a mark for what must not be reached, no check of its own."""
    return isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant)


def called(node: ast.Call) -> str:
    """The last name of what is called, empty where it has none."""
    return str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))


def queries_result(node: ast.AST) -> bool:
    """A method such as startswith of what a call gives, f(1).startswith("a"), but for a new object's,
    Trie().startswith("a")."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    result = node.func.value
    return node.func.attr in QUERIES and isinstance(result, ast.Call) and not called(result)[:1].isupper()


def is_checking_call(node: ast.AST) -> bool:
    """A call such as self.assertEqual(...) or pytest.raises(...), which checks when it is reached."""
    return isinstance(node, ast.Call) and called(node).lower().lstrip("_").startswith(("assert", "raises"))


def is_failure(node: ast.AST) -> bool:
    """A statement that fails the test when it is reached: `raise`, `assert False`, `self.fail()`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return called(node.value).lower().lstrip("_").startswith("fail")
    return isinstance(node, ast.Raise) or is_constant_assert(node)


def is_guard(node: Any) -> bool:
    """An `if`, `match` or loop with a branch of its own, or of an `elif`, that fails the test."""
    if isinstance(node, ast.Match):
        return any(is_failure(statement) for case in node.cases for statement in case.body)
    if any(map(is_failure, [*node.body, *node.orelse])):
        return True
    is_chain = isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
    return is_chain and is_guard(node.orelse[0])


def _is_case(node: ast.ClassDef) -> bool:
    names = {getattr(base, "attr", None) or getattr(base, "id", "") for base in node.bases}
    return any(str(name).endswith("TestCase") for name in names)


def collected(tree: ast.Module) -> list[ast.stmt]:
    """Test functions and classes of the module that only a runner such as pytest would call."""
    found: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, _FUNCTIONS) and node.name.startswith("test"):
            if node.name not in _loaded(tree, outside=node):
                found.append(node)
        elif isinstance(node, ast.ClassDef) and (_is_case(node) or node.name.startswith("Test")):
            if any(isinstance(item, _FUNCTIONS) and item.name.startswith("test") for item in node.body):
                found.append(node)
    return found


def _outer_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions at any depth, but no methods."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            continue
        if isinstance(child, _FUNCTIONS):
            yield child
        yield from _outer_functions(child)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, given: int) -> list[str]:
    """Names of the parameters without a default, after the first `given`."""
    every = [*node.args.posonlyargs, *node.args.args]
    needed = every[given : len(every) - len(node.args.defaults)]
    keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    return [item.arg for item in needed] + [item.arg for item, default in keywords if default is None]


def _unrunnable(node: ast.stmt) -> str | None:
    """Why a collected function or class cannot be run."""
    if isinstance(node, ast.ClassDef):
        methods = [item for item in node.body if isinstance(item, _FUNCTIONS)]
        tests = [item for item in methods if item.name.startswith("test")]
        given = 0 if not tests else 1
    else:
        tests, given = ([node] if isinstance(node, _FUNCTIONS) else []), 0
    for test in tests:
        filled = {
            text
            for mark in test.decorator_list
            if isinstance(mark, ast.Call)
            and ast.unparse(mark.func) == "pytest.mark.parametrize"
            and mark.args
            for text in _words(mark.args[0])
        }
        for name in _parameters(test, given):
            if name not in filled and name != "capsys":
                return f"{test.name} takes {name!r} and is never called; call it, or give it no arguments"
    return None


def _words(node: ast.expr) -> list[str]:
    items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    texts = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return [word.strip() for text in texts for word in text.split(",")]


def _is_judgement(node: ast.expr) -> bool:
    """An expression that only makes sense as the condition of something."""
    if isinstance(node, ast.BoolOp):
        return any(map(_is_judgement, node.values))
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
        return name in ("all", "any", "isinstance", "isclose", "allclose", "array_equal")
    return isinstance(node, (ast.Compare, ast.UnaryOp))


_JUDGES = frozenset(
    "all any isinstance issubclass isclose allclose array_equal bool callable hasattr eq ne contains "
    "startswith endswith".split()
)
_CALLERS = frozenset(
    "map filter iter starmap accumulate takewhile dropwhile groupby filterfalse reduce".split()
)
"""A StopIteration of a function that they call ends them as if all were well."""


def judges(node: ast.AST, program: Collection[str]) -> bool:
    """Whether an expression decides about values of the program, which has the names `program`, or may
    take an exception of it for an end of data; what it hands to functions of these names does not count."""
    operators = (ast.Compare, ast.BoolOp, ast.IfExp, ast.BinOp, ast.UnaryOp, ast.comprehension)
    if queries_result(node) and _loads(node, program):
        return True
    if isinstance(node, operators) and _loads(node, program):
        return not isinstance(node, ast.comprehension) or bool(node.ifs) or judges(node.iter, program)
    if isinstance(node, ast.Call):
        root: ast.expr = node.func
        while isinstance(root, (ast.Attribute, ast.Call)):
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name) and root.id in program:
            return False
        name = called(node).strip("_")
        if name in _JUDGES | _CALLERS and _loads(node, program):
            return True
    return any(judges(child, program) for child in ast.iter_child_nodes(node))


def _loads(node: ast.AST, program: Collection[str]) -> bool:
    return not _loaded(node).isdisjoint(program)


_PYTEST = ("raises", "approx", "fail", "main", "mark.parametrize")


def _foreign_pytest(tree: ast.AST) -> str | None:
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            text = ast.unparse(node)
            if text.startswith("pytest.") and text.removeprefix("pytest.") not in _PYTEST:
                return f"it uses {text}; of pytest there are {', '.join(_PYTEST)} and the fixture capsys"
    return None


_FIXTURES = frozenset("setup_class teardown_class setup_module teardown_module setup_function".split())


def _foreign_fixture(tree: ast.Module) -> str | None:
    """A fixture that pytest would call, or fill, and the judge does not."""
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and node.name in _FIXTURES and node.name not in _loaded(tree):
            known = "setup_method, teardown_method and capsys"
            return f"its {node.name!r} is never called; the fixtures that work are {known}"
    words = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    if "capsys" in words and any(
        isinstance(node, ast.Attribute) and node.attr == "err" for node in ast.walk(tree)
    ):
        return "it reads what capsys has of standard error; only standard output is captured"
    return None


def complaint(tree: ast.Module) -> str | None:
    """Why any program, or none, would pass these statements; None when they can fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_judgement(node.value):
            text = ast.unparse(node)[:80]
            return f"{text!r} compares and does nothing with the result; write 'assert {text}'"
    tests = collected(tree)
    for function in _outer_functions(tree):
        checks = any(map(_is_check, ast.walk(function)))
        # A decorator may have handed the function on.
        is_idle = not function.decorator_list and function.name not in _loaded(tree, outside=function)
        if checks and is_idle and function not in tests:
            return f"it defines {function.name!r} and never calls it, so nothing in it is checked"
    for test in tests:
        if reason := _unrunnable(test):
            return reason
    if reason := _foreign_pytest(tree) or _foreign_fixture(tree):
        return reason
    if not any(map(_is_check, ast.walk(tree))):
        return "nothing in it checks anything; write assert statements"
    if not program_names(tree):
        return "it asks nothing of the program: all names are builtins, the standard library's or its own"
    return None
