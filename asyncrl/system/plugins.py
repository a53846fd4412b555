"""Loads the object named by "package.module:name" or "./file.py:name"; owns the errors of wrong names."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from asyncrl.errors import InputError
from asyncrl.system.near_paths import nearest_path
from asyncrl.system.text_file import decoded

MOVED = {
    "asyncrl.trackers": "asyncrl.readers.trackers",
    "asyncrl.recipe.section": "asyncrl.recipe.sections.section",
    "asyncrl.recipe.trackers": "asyncrl.recipe.sections.trackers",
}
"""Modules that docs told users to name, or to copy from, and where they are now: the interface of trackers,
and the kinds of numbers in the options of a preparation."""


def load_object(target: str, *, folder: Path | None = None) -> object:
    """The object that `target` names; a path is taken relative to `folder`. Raises InputError."""
    module_name, separator, name = target.partition(":")
    if not separator or not module_name or not name:
        raise InputError(f'"{target}" names no object. Write "package.module:name" or "./file.py:name".')
    refuse_moved(target)
    module = _load_file(module_name, folder) if module_name.endswith(".py") else _load_module(module_name)
    try:
        return getattr(module, name)
    except AttributeError:
        public = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))) or "nothing"
        raise InputError(f'"{target}": {module_name} has no "{name}". It has: {public}.') from None


def refuse_moved(target: str) -> None:
    """Raises InputError with the new name where `target` names an object of a module that has moved."""
    module, separator, name = target.partition(":")
    now = _new_name(module) if separator else None
    if now is not None:
        raise InputError(f'"{target}": {module} is {now} now. Write "{now}:{name}".')


def _new_name(module: str) -> str | None:
    for old, new in MOVED.items():
        if module == old or module.startswith(f"{old}."):
            return new + module.removeprefix(old)
    return None


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and _new_name(error.name) is not None:
            raise _failed(name, error) from error
        raise InputError(
            f'"{name}" cannot be imported: {error}. Is it installed, or on PYTHONPATH?'
        ) from error
    except Exception as error:
        raise _failed(name, error) from error


def _load_file(name: str, folder: Path | None) -> ModuleType:
    path = ((folder or Path.cwd()) / name).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f'"{name}" is not a Python file: looked for {path}.{nearest_path(path, _is_python)}')
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


def _is_python(path: Path) -> bool:
    return path.suffix == ".py"


def _failed(name: str, error: Exception) -> InputError:
    moved = error.name if isinstance(error, ModuleNotFoundError) else None
    now = None if moved is None else _new_name(moved)
    advice = "" if now is None else f". {moved} is {now} now: change the import"
    return InputError(f'"{name}" failed to load: {type(error).__name__}: {error}{advice}')
