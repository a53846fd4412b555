"""Loads the object named by "package.module:name" or "./file.py:name"; owns the errors of wrong names."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from asyncrl.errors import InputError
from asyncrl.system.text_file import decoded


def load_object(target: str, *, folder: Path | None = None) -> object:
    """The object that `target` names; a path is taken relative to `folder`. Raises InputError."""
    module_name, separator, name = target.partition(":")
    if not separator or not module_name or not name:
        raise InputError(f'"{target}" names no object. Write "package.module:name" or "./file.py:name".')
    module = _load_file(module_name, folder) if module_name.endswith(".py") else _load_module(module_name)
    try:
        return getattr(module, name)
    except AttributeError:
        public = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))) or "nothing"
        raise InputError(f'"{target}": {module_name} has no "{name}". It has: {public}.') from None


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f'"{name}" cannot be imported: {error}. Is it installed, or on PYTHONPATH?'
        ) from error
    except Exception as error:
        raise _failed(name, error) from error


def _load_file(name: str, folder: Path | None) -> ModuleType:
    path = ((folder or Path.cwd()) / name).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f'"{name}" is not a Python file: looked for {path}.')
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        if "codec can't decode" in str(error):
            # Where its bytes are no text, this says which.
            decoded(path.read_bytes(), str(path))
        raise _failed(str(path), error) from error
    except Exception as error:
        raise _failed(str(path), error) from error
    return module


def _failed(name: str, error: Exception) -> InputError:
    return InputError(f'"{name}" failed to load: {type(error).__name__}: {error}')
