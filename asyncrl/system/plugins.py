"""Code of users: loads the object named by "package.module:name" or "./file.py:name", names a call that does
not return, counts faults in a row."""

import contextlib
import importlib
import importlib.util
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from asyncrl.errors import InputError
from asyncrl.system.files import decoded
from asyncrl.system.paths import nearest_path
from verifiers.storable import RAISED

MOVED = {
    "asyncrl.trackers": "asyncrl.readers.trackers",
    "asyncrl.recipe.section": "asyncrl.recipe.sections.section",
    "asyncrl.recipe.trackers": "asyncrl.recipe.sections.alarms",
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
        meant = nearest_path(path, lambda near: near.suffix == ".py")
        raise InputError(f'"{name}" is not a Python file: looked for {path}.{meant}')
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
    moved = error.name if isinstance(error, ModuleNotFoundError) else None
    now = None if moved is None else _new_name(moved)
    advice = "" if now is None else f". {moved} is {now} now: change the import"
    return InputError(f'"{name}" failed to load: {type(error).__name__}: {error}{advice}')


log = logging.getLogger(__name__)

FIRST_SECONDS = 5.0
"""Until a call is named; it is named again each time that it has taken twice as long."""
_POLL_SECONDS = 1.0


class SlowCalls:
    """Calls in one thread, one at a time. Costs nothing while none runs."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_busy = threading.Event()
        self._watcher: threading.Thread | None = None
        self._call: tuple[str, float] | None = None
        """(words, when it began)."""
        self._told: tuple[tuple[str, float] | None, float] = None, 0.0
        """The call that was named last, and after how many seconds."""

    @contextlib.contextmanager
    def call(self, words: str) -> Iterator[None]:
        """The block is a call; `words` say which, such as "parse_reference of ./v.py:V on train.jsonl:1"."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="slow calls", daemon=True)
            self._watcher.start()
        self._call = words, self._clock()
        self._is_busy.set()
        try:
            yield
        finally:
            self._call = None
            self._is_busy.clear()

    def look(self) -> None:
        """Names the call that runs, if it is time."""
        call = self._call
        if call is None:
            return
        words, began = call
        seconds = self._clock() - began
        told_call, told_seconds = self._told
        if seconds < (2 * told_seconds if told_call == call else FIRST_SECONDS):
            return
        self._told = call, seconds
        log.warning("WARNING: %s has not returned for %.0f s. Ctrl-C ends the wait.", words, seconds)

    def _watch(self) -> None:
        while self._is_busy.wait():
            time.sleep(_POLL_SECONDS)
            self.look()


# A fault is never a wrong answer, so a plug-in that always faults would drop every group, without end.
MIN_SECONDS = 20.0
"""Without an answer before a run ends: what a plug-in's server or a busy machine may take to come back."""
PAUSE_SECONDS = 1.0
"""Before a plug-in is asked again that failed too often, but not yet for long: one that fails at once would
cost a run many groups until then."""
MOST_CAUSES = 20
"""Warned of in a run, so that a plug-in that fails differently each time does not flood the terminal."""

_RAISED = re.compile(re.escape(RAISED) + r"(\w+): ")
_PLACE = re.compile(r"\((\S[^()]*:\d+)\)\Z")
_CHANGING = re.compile(r"(?<!exit code )(?<!\d)\d+(?:\.\d+)?|0x[0-9a-f]+|'[^']*'|\"[^\"]*\"")
_LONGEST = 100


def cause_of(detail: str) -> str:
    """A text that is equal for faults of the same cause, whatever the response."""
    # Search from the last bracket: a message may hold thousands of them.
    raised, place = _RAISED.search(detail), _PLACE.match(detail, max(0, detail.rfind("(")))
    if raised is not None and place is not None:
        return f"{raised.group(1)} at {place.group(1)}"
    words = " ".join(_CHANGING.sub("N", detail).split())
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."


@dataclass(slots=True)
class _Row:
    """The faults of one plug-in since its last answer."""

    num_faults: int
    since_seconds: float


@dataclass
class FaultsInARow:
    """One for each kind of plug-in in a run."""

    max_in_a_row: int
    clock: Callable[[], float] = time.monotonic
    _rows: dict[str, _Row] = field(default_factory=dict)
    _causes: set[str] = field(default_factory=set)

    def answered(self, name: str) -> None:
        """The plug-in has done its work."""
        self._rows.pop(name, None)

    def failed(self, name: str) -> int | None:
        """It has not. Its faults in a row, once they are too many and have lasted; else None."""
        now = self.clock()
        row = self._rows.setdefault(name, _Row(0, now))
        row.num_faults += 1
        if row.num_faults >= self.max_in_a_row and now - row.since_seconds >= MIN_SECONDS:
            return row.num_faults
        return None

    def pause_seconds(self, name: str) -> float:
        """How long to wait before the plug-in is asked again."""
        row = self._rows.get(name)
        return PAUSE_SECONDS if row is not None and row.num_faults >= self.max_in_a_row else 0.0

    def is_first(self, what: str, detail: str) -> bool:
        """Whether to warn: the cause is the first of its kind, and few were warned of."""
        cause = f"{what}: {cause_of(detail)}"
        if cause in self._causes or len(self._causes) >= MOST_CAUSES:
            return False
        self._causes.add(cause)
        return True
