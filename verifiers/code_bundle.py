"""The modules that run in a box beside a program or a test, as one file and the script that loads it.

Compiled here: compiling them in every box would take as long as all the rest of a run. A box whose Python has
another bytecode compiles them itself."""

import functools
import importlib.util
import marshal
from pathlib import Path

_LOADER = b"""
import marshal, sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER
with open("modules", "rb") as file:
    entry, magic, compiled, sources = marshal.load(file)
modules = marshal.loads(compiled) if magic == MAGIC_NUMBER else sources
class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name in modules else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        code = modules[module.__name__]
        if isinstance(code, bytes):
            code = compile(code, module.__name__ + ".py", "exec", dont_inherit=True)
        exec(code, module.__dict__)
sys.meta_path.insert(0, Finder())
__import__(entry).main()
"""
_PROGRAM = ("code_program", "code_values", "code_forms", "code_server")
_JUDGE = (
    "code_judge",
    "code_values",
    "code_forms",
    "code_names",
    "code_link",
    "code_reference",
    "code_pytest",
)


@functools.cache
def bundle(entry: str) -> tuple[tuple[str, bytes], ...]:
    """The files of a box that runs `entry`, code_program or code_judge: run.py and its modules."""
    names = _PROGRAM if entry == "code_program" else _JUDGE
    folder = Path(__file__).parent
    sources = {name: (folder / f"{name}.py").read_bytes() for name in names}
    codes = {name: compile(text, f"{name}.py", "exec", dont_inherit=True) for name, text in sources.items()}
    parts = (entry, importlib.util.MAGIC_NUMBER, marshal.dumps(codes), sources)
    return ("run.py", _LOADER), ("modules", marshal.dumps(parts, 2))
