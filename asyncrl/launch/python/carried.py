"""The source of a function or class that lives in a notebook or a script, as a file that worker processes
import.

Source and not a pickle: a person can read what graded the run, and a copied run folder runs no bytes that
cannot be read. What the definition uses is carried along: definitions beside it as source, constants by
their value, all else as imports.
"""

import ast
import builtins
import dis
import inspect
import linecache
import re
import site
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from asyncrl.errors import InputError

Definition = FunctionType | type[Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """Lines of a carried module that were copied from one place."""

    first_line: int
    num_lines: int
    file: str
    file_line: int
    """Line of `file` that `first_line` is."""

    def line_of(self, line: int) -> str | None:
        """FILE:LINE of a line of the module; None for one that came from elsewhere."""
        offset = line - self.first_line
        return f"{self.file}:{self.file_line + offset}" if 0 <= offset < self.num_lines else None


def carried_source(definition: Definition, what: str) -> tuple[str, list[Origin]]:
    """A module with `definition` under its own name, and where its definitions come from. `what` begins the
    sentences, such as "verifier". Raises InputError for a definition without source, and for what it uses
    that no file can hold."""
    carrier = _Carrier(what)
    carrier.carry(definition.__name__, definition)
    return carrier.text(), list(carrier.origins())


class _Carrier:
    """Collects imports and definitions, each after what it uses."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._imports: dict[str, str] = {}
        """Name in the module -> line."""
        self._definitions: dict[str, str] = {}
        self._places: dict[str, tuple[str, int]] = {}
        """Name of a definition -> file and line that its source was read from."""
        self._values: dict[str, Any] = {}
        """Name -> object that it stands for."""
        self._folders: dict[str, None] = {}
        """Folders that modules of the user's are imported from."""

    def carry(self, name: str, value: Any) -> None:
        """Makes `name` mean `value` in the module."""
        if name in self._values:
            if self._values[name] is not value:
                raise InputError(
                    f"{self._what}: two different things are called {name} where it is used. Rename one."
                )
            return
        self._values[name] = value
        module = value if isinstance(value, ModuleType) else _importable(value)
        if module is not None:
            folder = _folder_of(module)
            if folder is not None and not _is_installed(folder):
                self._folders[str(folder)] = None
            origin = "" if value is module else f"from {module.__name__} "
            alias = "" if value.__name__ == name else f" as {name}"
            self._imports[name] = f"{origin}import {value.__name__}{alias}"
        elif callable(value) and isinstance(inspect.unwrap(value), FunctionType | type):
            self._carry_definition(name, inspect.unwrap(value))
        else:
            self._definitions[name] = f"{name} = {self._literal(name, value)}"

    def text(self) -> str:
        return "\n".join([*self._head(), "\n\n\n".join(self._definitions.values()), ""])

    def origins(self) -> Iterator[Origin]:
        line = len(self._head()) + 1
        for name, source in self._definitions.items():
            num_lines = source.count("\n") + 1
            if name in self._places:
                yield Origin(line, num_lines, *self._places[name])
            line += num_lines + 2

    def _head(self) -> list[str]:
        """Lines above the definitions."""
        paths = [f"sys.path.append({folder!r})" for folder in self._folders]
        head = ["from __future__ import annotations", "", *(["import sys", "", *paths, ""] if paths else [])]
        return [*head, *self._imports.values(), "", ""]

    def _carry_definition(self, name: str, definition: Definition) -> None:
        if definition.__name__ != name:
            self.carry(definition.__name__, definition)
            self._definitions[name] = f"{name} = {definition.__name__}"
            return
        source, file, line = _source_of(definition, self._what)
        for used, value in _used(definition, source, self._what):
            if value is not definition:
                self.carry(used, value)
        # Behind what it uses: a default or a base class is needed at once.
        self._definitions[name] = source
        self._places[name] = (file, line)

    def _literal(self, name: str, value: Any) -> str:
        if isinstance(value, re.Pattern):
            self.carry("re", re)
            return f"re.compile({value.pattern!r}, {value.flags})"
        text = repr(value)
        try:
            is_whole = type(ast.literal_eval(text)) is type(value) and ast.literal_eval(text) == value
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            is_whole = False
        if not is_whole:
            raise InputError(
                f"{self._what} uses {name}, an object of {type(value).__name__}, which worker processes "
                f"cannot be given. Make it inside of the function, or write the verifier to a file and name "
                f"it as ./my_verifier.py:Name."
            )
        return text


def _source_of(definition: Definition, what: str) -> tuple[str, str, int]:
    """(text of its `def` or `class`, decorators included, without indentation; its file; its first line)."""
    name = definition.__name__
    if not name.isidentifier():
        raise InputError(
            f"{what} is a lambda, whose source cannot be told from its line. Give it a name by def."
        )
    code = next(_codes(definition), None)
    if code is not None:
        lines = linecache.getlines(code.co_filename)
        if found := _find(lines, definition, code):
            return textwrap.dedent("".join(lines[found])).rstrip(), code.co_filename, found.start + 1
    raise InputError(
        f"{what}: the source of {name} is not to be found: it was not made in a file or a cell. Write it to "
        f"a file and name it as ./my_verifier.py:{name}."
    )


def _find(lines: list[str], definition: Definition, code: CodeType) -> slice | None:
    """Where the definition is in the lines of its file, from its first decorator on."""
    kinds = ast.FunctionDef if isinstance(definition, FunctionType) else ast.ClassDef
    try:
        nodes = list(ast.walk(ast.parse("".join(lines))))
    except SyntaxError:
        # A cell with magics: IPython's own lines, such as %time.
        return None
    for node in nodes:
        if isinstance(node, kinds) and node.name == definition.__name__:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or first):
                return slice(first - 1, node.end_lineno)
    return None


def _codes(definition: Definition) -> Iterator[CodeType]:
    """The code of a function, or of the methods of a class."""
    members = [definition] if isinstance(definition, FunctionType) else vars(definition).values()
    for member in members:
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        function = function.fget if isinstance(function, property) else function
        if isinstance(function, FunctionType):
            yield inspect.unwrap(function).__code__ if definition is member else function.__code__


def _used(definition: Definition, source: str, what: str) -> Iterator[tuple[str, Any]]:
    """(name, object) of everything outside that the definition uses. Raises InputError for a name of the
    function around it that has no value."""
    scope: dict[str, Any] = {}
    empty: set[str] = set()
    names: dict[str, None] = {}
    functions = [definition] if isinstance(definition, FunctionType) else []
    if not functions:
        module = sys.modules.get(definition.__module__)
        scope |= vars(module) if module is not None else {}
        functions = [each for each in vars(definition).values() if isinstance(each, FunctionType)]
    for function in functions:
        scope |= function.__globals__
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                scope[name] = cell.cell_contents
            except ValueError:
                empty.add(name)
        scope.pop("__class__", None)
        empty.discard("__class__")
    for code in _codes(definition):
        names |= dict.fromkeys(_names_of(code))
    names |= dict.fromkeys(_names_at_definition(source))
    for name in names:
        if name in empty:
            raise InputError(f"{what} uses {name}, which has no value yet. Give it one before.")
        if name in scope and not (hasattr(builtins, name) and scope[name] is getattr(builtins, name)):
            yield name, scope[name]


def _names_of(code: CodeType) -> Iterator[str]:
    """Names that the code looks up outside of itself, those of functions within it included."""
    yield from code.co_freevars
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _names_at_definition(source: str) -> Iterator[str]:
    """Names that are needed when the definition is made: defaults, decorators, base classes, attributes."""
    node = ast.parse(source).body[0]
    parts: list[ast.AST] = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef):
            parts += inner.decorator_list
        if isinstance(inner, ast.FunctionDef):
            parts += [*inner.args.defaults, *(each for each in inner.args.kw_defaults if each is not None)]
        if isinstance(inner, ast.ClassDef):
            parts += [*inner.bases, *(each.value for each in inner.keywords)]
            parts += [each for each in inner.body if isinstance(each, ast.Assign)]
            parts += [each.value for each in inner.body if isinstance(each, ast.AnnAssign) and each.value]
    for part in parts:
        yield from (each.id for each in ast.walk(part) if isinstance(each, ast.Name))


def _importable(value: Any) -> ModuleType | None:
    """The module that worker processes can import `value` from by its own name; None for what was made in a
    notebook or a script, and for plain values."""
    named = getattr(value, "__module__", None)
    if not callable(value) or not isinstance(named, str) or named == "__main__":
        return None
    module = sys.modules.get(named)
    if module is None or getattr(module, getattr(value, "__name__", ""), None) is not value:
        return None
    has_file = getattr(module, "__file__", None) is not None
    return module if not has_file or _folder_of(module) is not None else None


def _folder_of(module: ModuleType) -> Path | None:
    """The folder from which the module is imported by its name; None for one without a file, or whose file
    has another name than the module."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path, parts = Path(file).resolve(), module.__name__.split(".")
    place = (
        path.parent
        if path.name.partition(".")[0] == "__init__"
        else path.parent / path.name.partition(".")[0]
    )
    return place.parents[len(parts) - 1] if list(place.parts[-len(parts) :]) == parts else None


def _is_installed(folder: Path) -> bool:
    """Whether every Python process of this environment looks for modules there."""
    roots = [*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    ours = Path(__file__).parents[2]
    return any(folder.is_relative_to(root) for root in (ours, *(Path(root).resolve() for root in roots)))
