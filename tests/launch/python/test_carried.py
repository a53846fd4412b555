"""A function of a script or a notebook, written to a file with all that it uses."""

import linecache
import runpy
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from asyncrl.errors import InputError
from asyncrl.launch.python.carried import carried_source

Cell = Callable[[str], dict[str, Any]]


@pytest.fixture
def cell() -> Cell:
    """Runs code as a notebook's cell: its source is in linecache, its names in `__main__`."""
    names: dict[str, Any] = {"__name__": "__main__"}

    def run(code: str) -> dict[str, Any]:
        file = f"<cell {len(linecache.cache)}>"
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        exec(compile(code, file, "exec"), names)
        return names

    return run


def loaded(definition: Any, folder: Path) -> dict[str, Any]:
    """The names of the module that a worker would load."""
    path = folder / "carried.py"
    path.write_text(carried_source(definition, "verifier")[0])
    return runpy.run_path(str(path))


def test_helpers_constants_and_imports_come_along(cell: Cell, tmp_path: Path) -> None:
    cell(
        "import re\nimport math as m\nfrom fractions import Fraction\n"
        "BOX = re.compile(r'b\\{(.*?)\\}', re.S)\n"
    )
    cell("LIMITS = {'least': 1, 'most': (2, 3)}\ndef box(text):\n    return BOX.findall(text)[-1]\n")
    names = cell(
        "def is_right(response, reference, scale=LIMITS['least']):\n"
        "    inner = lambda text: Fraction(box(text))\n"
        "    return m.isclose(inner(response), scale * Fraction(reference))\n"
    )
    function = loaded(names["is_right"], tmp_path)["is_right"]
    assert function("b{1/2}", "0.5") is True and function("b{1/3}", "0.5") is False
    assert carried_source(names["is_right"], "verifier") == carried_source(names["is_right"], "verifier")


def test_each_line_of_a_definition_knows_the_line_that_it_was_copied_from(cell: Cell) -> None:
    names = cell(
        "LIMIT = 3\n\n\ndef low(text):\n    return int(text) / 0\n\n\n"
        "def is_right(response, reference):\n    return low(reference) > LIMIT\n"
    )
    text, origins = carried_source(names["is_right"], "verifier")
    cell_lines = linecache.getlines(names["is_right"].__code__.co_filename)
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for place in filter(None, (origin.line_of(number) for origin in origins)):
            found[line] = cell_lines[int(place.rpartition(":")[2]) - 1].rstrip()
    assert found and all(copy == line for copy, line in found.items())
    assert {"    return int(text) / 0", "def is_right(response, reference):"} <= found.keys()


def test_what_is_not_used_stays(cell: Cell) -> None:
    names = cell("model = object()\nimport json\ndef f(response, reference):\n    return True\n")
    assert "json" not in carried_source(names["f"], "verifier")[0]


def test_a_decorated_function_brings_its_decorator(cell: Cell, tmp_path: Path) -> None:
    names = cell(
        "import functools\n"
        "def twice(function):\n"
        "    @functools.wraps(function)\n"
        "    def wrapped(response, reference):\n"
        "        return 2 * function(response, reference)\n"
        "    return wrapped\n"
        "@twice\ndef f(response, reference):\n    return 1\n"
    )
    assert loaded(names["f"], tmp_path)["f"]("", "") == 2


def test_a_class_brings_its_bases_and_what_its_methods_use(cell: Cell, tmp_path: Path) -> None:
    cell(
        "WORDS = ['even', 'odd']\nclass Base:\n"
        "    def parse_reference(self, raw):\n        return WORDS.index(raw)\n"
    )
    names = cell(
        "class Parity(Base):\n"
        "    def verify(self, response, reference):\n        return int(response) % 2 == reference\n"
    )
    parity = loaded(names["Parity"], tmp_path)["Parity"]()
    assert parity.verify("4", parity.parse_reference("even"))


def test_a_closure_brings_what_it_closes_over(cell: Cell, tmp_path: Path) -> None:
    names = cell(
        "def make(limit):\n    def is_short(response, reference):\n        return len(response) < limit\n"
        "    return is_short\nshort = make(3)\n"
    )
    assert loaded(names["short"], tmp_path)["is_short"]("ab", "") is True


def test_functions_that_call_each_other_come_once(cell: Cell, tmp_path: Path) -> None:
    names = cell(
        "def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n != 0 and even(n - 1)\n"
        "def f(response, reference):\n    return even(int(response))\n"
    )
    assert loaded(names["f"], tmp_path)["f"]("4", "") is True


def test_a_module_beside_the_script_is_imported_from_its_folder(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_script.py").write_text("def strip(text):\n    return text.strip()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = cell(
        "from beside_script import strip as s\n"
        "def f(response, reference):\n    return s(response) == reference\n"
    )
    source, _ = carried_source(names["f"], "verifier")
    assert f"sys.path.append({str(tmp_path)!r})" in source
    assert "from beside_script import strip as s" in source


def test_a_function_without_source_is_refused() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(response, reference):\n    return True\n", names)
    with pytest.raises(InputError, match="the source of f is not to be found"):
        carried_source(names["f"], "verifier")


def test_a_function_that_a_module_has_is_imported_and_not_copied() -> None:
    source, _ = carried_source(linecache.getline, "verifier")
    assert "from linecache import getline" in source and isinstance(linecache, ModuleType)
    assert isinstance(linecache.getline, FunctionType)
