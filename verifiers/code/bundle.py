"""The modules that run in a box with a program or a test, as one file and the script that loads it.

Compiled here: compiling them in every box would take as long as all the rest of a run. A box whose Python has
another bytecode compiles them itself."""

import functools
import importlib.util
import marshal
from pathlib import Path
from typing import Literal

_LOADER = b"""
import marshal, sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
with open("modules", "rb") as file:
    entry, packages, magic, compiled, sources = marshal.load(file)
modules = marshal.loads(compiled) if magic == MAGIC_NUMBER else sources
class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=name in packages) if name in modules else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        code = modules[module.__name__]
        if isinstance(code, bytes):
            code = compile(code, module.__name__ + ".py", "exec", dont_inherit=True)
        exec(code, module.__dict__)
sys.meta_path.insert(0, Finder())
__import__(entry)
sys.modules[entry].main()
"""
Entry = Literal["program_main", "judge"]
_MODULES: dict[Entry, tuple[str, ...]] = {
    "program_main": ("program_main", "program", "values", "forms", "server"),
    "judge": ("judge", "values", "forms", "names", "link", "reference", "pytest_stand_in"),
}
_PACKAGES = ("verifiers", "verifiers.code")


@functools.cache
def bundle(entry: Entry) -> tuple[tuple[str, bytes], ...]:
    """The files of a box that runs `main` of this module: run.py and its modules."""
    folder = Path(__file__).parent
    sources = {f"verifiers.code.{name}": (folder / f"{name}.py").read_bytes() for name in _MODULES[entry]}
    sources |= dict.fromkeys(_PACKAGES, b"")
    codes = {name: compile(text, f"{name}.py", "exec", dont_inherit=True) for name, text in sources.items()}
    parts = (f"verifiers.code.{entry}", _PACKAGES, importlib.util.MAGIC_NUMBER, marshal.dumps(codes), sources)
    return ("run.py", _LOADER), ("modules", marshal.dumps(parts, 2))
