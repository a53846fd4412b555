"""The files that a call of `asyncrl.train` leaves in the run folder, RUN/call: the recipe that it says, rows
that were in memory, the source of a verifier that was defined in the caller's program.

Each has a name with the digest of its contents: the same call again means the same files and so the same run,
and another one is refused by the run folder as a changed recipe is.
"""

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from asyncrl.errors import InputError
from asyncrl.launch.python.arguments import is_path, is_text, refusal, shown
from asyncrl.launch.python.carried import Origin, carried_source
from asyncrl.recipe.file import shown as shown_path
from asyncrl.recipe.sources import Source
from asyncrl.recipe.yaml_text import write_yaml
from asyncrl.system.files import write_whole
from asyncrl.system.paths import expanded
from asyncrl.system.words import kind_of
from verifiers.registry import check_function

OWN_VERIFIER = "Verifier"
"""Name of the class in the file of a carried verifier."""
SHOWN_DIGEST = 12
DATA = "rows, a path or a hub id"
VERIFIER = "a name, a function (response, reference), or a class with parse_reference and verify"
_MOST_WHOLE = 2**63
Rows = Iterable[Mapping[str, Any]]
Data = str | Path | Mapping[str, Any] | Rows
"""A path or hub id, a source as `data.train` has it, or rows: mappings, a data set, a data frame."""


@dataclass
class CallFiles:
    """Files to be written, by name; nothing is written before all of the call is known to make sense."""

    folder: Path
    """RUN/call."""
    texts: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    """A place of such a file -> what the call says in its place, for sentences."""
    origins: dict[str, list[Origin]] = field(default_factory=dict)
    """A file of carried source -> where its lines come from."""

    def add(self, stem: str, ending: str, text: str) -> Path:
        """The place that the file will have."""
        name = f"{stem}-{_digest(text.encode())}{ending}"
        self.texts[name] = text
        return self.folder / name

    def as_said(self, text: str) -> str:
        """A sentence about these files, as one about the call."""
        for file, origins in self.origins.items():
            for found in set(re.findall(rf"{re.escape(file)}:(\d+)", text)):
                for place in filter(None, (each.line_of(int(found)) for each in origins)):
                    text = re.sub(rf"{re.escape(f'{file}:{found}')}\b", place.replace("\\", r"\\"), text)
        for place, words in self.said.items():
            for path in (place, str(shown_path(Path(place)))):
                text = re.sub(rf"{re.escape(path)}:(\d+)", rf"{words}, row \1", text).replace(path, words)
        return text

    def write(self) -> list[Path]:
        """Those that were not there. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new = [self.folder / name for name in self.texts if not (self.folder / name).exists()]
        for path in new:
            write_whole(path, self.texts[path.name])
        return new


def is_as_written(path: Path) -> bool:
    """Whether a file of a call still holds what its name says."""
    return _digest(path.read_bytes()) == path.stem.rpartition("-")[2]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:SHOWN_DIGEST]


def source_of_data(data: Data, name: str, files: CallFiles, *, is_graded: bool = False) -> Any:
    """`data` as a recipe names it; rows go to a file. `name` is the parameter, for sentences; `is_graded`:
    the call names a verifier. Raises InputError for what is no row, and for rows that name another
    verifier."""
    match data:
        case Path() | str():
            if not is_path(data):
                raise refusal(name, data, DATA)
            return str(expanded(data).absolute()) if isinstance(data, Path) else data
        case Mapping():
            return _source(data, name)
    rows = rows_of(data, name)
    if (
        is_graded
        and (row := next((row for row in rows if row.get("verifier") is not None), None)) is not None
    ):
        raise InputError(
            f"{name} has a row that names its verifier, {row['verifier']!r}, and the call names one, too. "
            f"Leave out the one that is not meant."
        )
    path = files.add(name, ".jsonl", _lines(rows, name))
    files.said[str(path)] = name
    return str(path)


def rows_of(data: Any, name: str) -> list[Mapping[str, Any]]:
    """Rows that are in memory. Raises InputError for what holds none."""
    # A data frame iterates over the names of its columns.
    found = _records(data) if hasattr(data, "itertuples") else data
    if not isinstance(found, Iterable) or isinstance(found, bytes | bytearray | type):
        raise refusal(name, data, DATA)
    rows = list(found)
    if not rows:
        raise InputError(f"{name} has no rows.")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise InputError(
                f"{name}, row {number} is {shown(row)}, expected a mapping such as "
                f'{{"prompt": "1+1=", "answer": "2"}}.'
            )
        if other := [key for key in row if not isinstance(key, str)]:
            raise InputError(f"{name}, row {number} has the key {shown(other[0])}, expected text.")
    return rows


def _records(frame: Any) -> list[dict[str, Any]]:
    """The rows of a data frame, in which NaN stands for a value that is missing."""
    rows = frame.to_dict("records")
    return [
        {key: None if isinstance(value, float) and value != value else value for key, value in row.items()}
        for row in rows
    ]


def _source(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A source as `data.train` has it. Raises InputError for a mapping that is something else, such as one
    row, columns, or the splits of a data set."""
    if data and not any(key in Source.model_fields for key in data):
        keys = ", ".join(map(str, data))
        raise InputError(
            f"{name} is a mapping with {keys:.200}, expected {DATA}: a list of rows, one split of a data "
            f'set, or a source with "path" or "gym".'
        )
    return dict(data)


def set_apart(rows: Sequence[Any], number: int, *, seed: int) -> tuple[list[Any], list[Any]]:
    """(the others, `number` of the rows by chance), each in the order of the rows."""
    if not 0 < number < len(rows):
        raise InputError(f"heldout is {number}, expected rows, or a number below that of data ({len(rows)}).")
    chosen = set(random.Random(seed).sample(range(len(rows)), number))
    return (
        [row for index, row in enumerate(rows) if index not in chosen],
        [row for index, row in enumerate(rows) if index in chosen],
    )


def verifier_name(verifier: str | Callable[..., Any], files: CallFiles) -> str:
    """`verifying.default` of a name, a function or a class. Raises InputError."""
    if is_text(verifier):
        return str(verifier)
    if isinstance(verifier, FunctionType):
        try:
            check_function(verifier)
        except TypeError as error:
            raise InputError(f"verifier: {error}") from None
        end = "from verifiers.registry import from_function\n\n"
        end += f"{OWN_VERIFIER} = from_function({verifier.__name__})\n"
    elif isinstance(verifier, type):
        _check_class(verifier)
        end = "" if verifier.__name__ == OWN_VERIFIER else f"{OWN_VERIFIER} = {verifier.__name__}\n"
    else:
        raise refusal("verifier", verifier, VERIFIER)
    source, origins = carried_source(verifier, "verifier")
    path = files.add(verifier.__name__, ".py", f"{source}\n\n{end}")
    files.origins[str(path)] = origins
    files.said[f"{path}:{OWN_VERIFIER}"] = verifier.__name__
    return f"{path}:{OWN_VERIFIER}"


def _check_class(verifier: type) -> None:
    """Raises InputError for a class without the methods of a verifier."""
    grading = ("verify", "verify_async", "verify_group", "verify_group_async")
    has_grading = any(callable(getattr(verifier, method, None)) for method in grading)
    if not has_grading or not callable(getattr(verifier, "parse_reference", None)):
        lacking = "parse_reference" if has_grading else "verify"
        raise InputError(f"verifier is the class {verifier.__name__} without {lacking}, expected {VERIFIER}.")


def recipe_text(raw: Mapping[str, Any]) -> str:
    """Raises InputError for a value that YAML has no word for."""
    try:
        return write_yaml(_plain(raw, ""))
    except TypeError as error:
        raise InputError(str(error)) from None
    except RecursionError:
        raise InputError("An argument is nested too deeply, or holds itself.") from None


def _plain(value: Any, key: str) -> Any:
    match value:
        case Mapping():
            return {
                _name(name, key): _plain(inner, f"{key}.{name}".removeprefix("."))
                for name, inner in value.items()
            }
        case Path() if is_path(value):
            return str(expanded(value).absolute())
        case None | bool():
            return value
        case str() if is_text(value) or not value:
            return str(value)
        case int() if abs(value) < _MOST_WHOLE:
            return int(value)
        case float():
            return float(value)
        case list() | tuple():
            return [_plain(inner, key) for inner in value]
        case object(tolist=tolist) if callable(tolist):
            # Numbers and arrays of numpy.
            return _plain(tolist(), key)
    raise TypeError(f"{key} is {shown(value)}, expected what a recipe can hold.")


def _name(name: Any, key: str) -> str:
    if not is_text(name):
        where = f"in {key}, the key" if key else "the key"
        raise TypeError(f"{where} {shown(name)} is {kind_of(name)}, expected a name.")
    return str(name)


def _lines(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    lines = []
    for number, row in enumerate(rows, start=1):
        try:
            line = json.dumps(dict(row), ensure_ascii=False, default=_scalar)
            line.encode()
        except UnicodeEncodeError:
            raise InputError(f"{name}, row {number} has half of a surrogate pair in {shown(row)}.") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{name}, row {number} cannot be written as JSON: {error}.") from None
        lines.append(line)
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> Any:
    """Numbers and arrays of numpy as JSON has them."""
    for method in ("tolist", "isoformat"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    raise TypeError(f"it holds an object of {type(value).__name__}")
