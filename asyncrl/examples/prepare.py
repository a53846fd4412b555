"""Makes what section `prepare` of a recipe asks for: data, and a base model.

    python -m asyncrl.examples.prepare --recipe recipes/r1_zero_arithmetic_cpu.yaml [section.key=value ...]

Owns the folder's stamp, which names what made it: the folder is there in full or not at all. It is made under
another name and then renamed; the next call removes what a killed one leaves. Progress goes to stdout as JSON
lines {"stage", "done", "total"}; what the user can correct goes to stderr, with exit code 2.
"""

import argparse
import fcntl
import inspect
import json
import operator
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from asyncrl.errors import AsyncrlError, InputError
from asyncrl.recipe import Prepare
from asyncrl.recipe.file import load_recipe
from asyncrl.system.files import writing
from asyncrl.system.plugins import load_object

Progress = Callable[[str, int, int], None]
STAMP_NAME = "prepared.json"
FORMAT = 4
"""Raised when the same target and options begin to make something else, so that old folders are remade."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m asyncrl.examples.prepare")
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    lines = _own_output()

    def tell(stage: str, done: int, total: int) -> None:
        print(json.dumps({"stage": stage, "done": done, "total": total}), file=lines, flush=True)

    try:
        recipe = load_recipe(arguments.recipe, arguments.overrides)
        if recipe.prepare is None:
            raise InputError(f"{arguments.recipe} has no section prepare: there is nothing to make.")
        make_folder(recipe.prepare, tell)
    except AsyncrlError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def is_prepared(section: Prepare) -> bool:
    """Whether the folder was made in full by this target with these options."""
    return _read_stamp(section) == _stamp(section)


def make_folder(section: Prepare, progress: Progress) -> None:
    """Calls the target unless the folder is up to date. The folder stays as it was when the target fails."""
    if is_prepared(section):
        return
    folder = Path(section.folder)
    if folder.exists() and _read_stamp(section) is None:
        raise InputError(
            f"prepare.folder is {folder}, which exists and was not made by prepare: it has no readable "
            f"{STAMP_NAME}. Name another folder, or move this one away."
        )
    target = load_object(section.target)
    if not callable(target):
        raise InputError(f'prepare.target is "{section.target}", which is not a function.')
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_maker(folder):
        # In the same parent folder, so that the renames stay within one file system.
        making, replaced = (folder.with_name(f"{folder.name}.{state}") for state in ("making", "replaced"))
        _remove(making, replaced)
        making.mkdir()
        try:
            with writing(f"The output of {section.target}", folder.parent):
                _call(target, making, progress, section)
            (making / STAMP_NAME).write_text(json.dumps(_stamp(section), indent=2) + "\n", encoding="utf-8")
            if folder.exists():
                folder.rename(replaced)
            making.rename(folder)
        finally:
            _remove(making, replaced)


def _call(target: Callable[..., object], folder: Path, progress: Progress, section: Prepare) -> None:
    """Has `target` fill `folder`. Raises InputError when it raises, or leaves nothing."""
    where = f"prepare.target {section.target}, called with (folder, progress, **{section.options!r}),"

    def checked(stage: str, done: int, total: int) -> None:
        try:
            progress(str(stage), operator.index(done), operator.index(total))
        except TypeError as error:
            raise InputError(
                f"it called progress({stage!r}, {done!r}, {total!r}); expected a text and two whole numbers."
            ) from error

    try:
        found = target(folder, checked, **section.options)
    except AsyncrlError:
        raise
    except Exception as error:  # the boundary: whatever a target of the user's own raises
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{where} raised {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        ) from error
    if found is not None:
        if inspect.iscoroutine(found):
            # Python would warn, whenever it is collected, that it never ran.
            found.close()
        raise InputError(
            f"{where} gave {found!r}; expected None and files in the folder. A generator or a coroutine has "
            f"not run."
        )
    if not any(folder.iterdir()):
        raise InputError(f"{where} left the folder empty; expected data or a model in it.")


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _only_maker(folder: Path) -> Iterator[None]:
    """Holds a lock that dies with the process. Raises InputError where another process holds it."""
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"Another process is making {folder} (prepare.folder) right now. Wait for it, or name "
                f"another folder."
            ) from None
        yield


def _stamp(section: Prepare) -> object:
    """The inputs that make the folder, as JSON gives them back."""
    stamp = {"format": FORMAT, "target": section.target, "options": section.options}
    return json.loads(json.dumps(stamp, default=str))


def _read_stamp(section: Prepare) -> object:
    """The folder's stamp; None without a readable one."""
    try:
        return json.loads((Path(section.folder) / STAMP_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _own_output() -> TextIO:
    """Standard output for progress alone: what a target prints, or a program that it starts, goes to standard
    error."""
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return lines


if __name__ == "__main__":
    sys.exit(main())
