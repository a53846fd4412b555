"""The files that a call of `asyncrl.train` leaves in the run folder, RUN/call: the recipe that it says, rows
that were in memory, the source of a verifier that was defined in the caller's program.

Each has a name with the digest of its contents: the same call again means the same files and so the same run,
and another one is refused by the run folder as a changed recipe is.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from asyncrl.errors import InputError
from asyncrl.launch.python.carried import carried_source
from asyncrl.recipe.yaml_text import write_yaml
from asyncrl.system.whole_file import write_whole
from verifiers.function import check_function

OWN_VERIFIER = "Verifier"
"""Name of the class in the file of a carried verifier."""
SHOWN_DIGEST = 12
Rows = Iterable[Mapping[str, Any]]
Data = str | Path | Mapping[str, Any] | Rows
"""A path or hub id, a source as `data.train` has it, or rows: mappings, a data set, a data frame."""


@dataclass
class CallFiles:
    """Files to be written, by name; nothing is written before all of the call is known to make sense."""

    folder: Path
    """RUN/call."""
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, stem: str, ending: str, text: str) -> Path:
        """The place that the file will have."""
        name = f"{stem}-{_digest(text.encode())}{ending}"
        self.texts[name] = text
        return self.folder / name

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
        case Path():
            return str(data.expanduser().absolute())
        case str():
            return data
        case Mapping():
            return dict(data)
    rows = rows_of(data, name)
    if (
        is_graded
        and (row := next((row for row in rows if row.get("verifier") is not None), None)) is not None
    ):
        raise InputError(
            f"{name} has a row that names its verifier, {row['verifier']!r}, and the call names one, too. "
            f"Leave out the one that is not meant."
        )
    return str(files.add(name, ".jsonl", _lines(rows, name)))


def rows_of(data: Any, name: str) -> list[Mapping[str, Any]]:
    """Rows that are in memory. Raises InputError for what holds none."""
    # A data frame iterates over the names of its columns.
    found = data.to_dict("records") if hasattr(data, "itertuples") else data
    if not isinstance(found, Iterable):
        raise InputError(f"{name} is {type(data).__name__}, expected rows, a path or a hub id.")
    rows = list(found)
    if not rows:
        raise InputError(f"{name} has no rows.")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise InputError(
                f"{name}, row {number} is {row!r:.80}, expected a mapping such as "
                f'{{"prompt": "1+1=", "answer": "2"}}.'
            )
    return rows


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
    if isinstance(verifier, str):
        return verifier
    if isinstance(verifier, FunctionType):
        try:
            check_function(verifier)
        except TypeError as error:
            raise InputError(f"verifier: {error}") from None
        end = "from verifiers.function import from_function\n\n"
        end += f"{OWN_VERIFIER} = from_function({verifier.__name__})\n"
    elif isinstance(verifier, type):
        end = "" if verifier.__name__ == OWN_VERIFIER else f"{OWN_VERIFIER} = {verifier.__name__}\n"
    else:
        raise InputError(
            f"verifier is {type(verifier).__name__}, expected a name, a function (response, reference), or a "
            f"class with parse_reference and verify."
        )
    source = carried_source(verifier, "verifier")
    path = files.add(verifier.__name__, ".py", f"{source}\n\n{end}")
    return f"{path}:{OWN_VERIFIER}"


def recipe_text(raw: Mapping[str, Any]) -> str:
    """Raises InputError for a value that YAML has no word for."""
    try:
        return write_yaml(_plain(raw, ""))
    except TypeError as error:
        raise InputError(str(error)) from None


def _plain(value: Any, key: str) -> Any:
    match value:
        case Mapping():
            return {
                str(name): _plain(inner, f"{key}.{name}".removeprefix(".")) for name, inner in value.items()
            }
        case Path():
            return str(value.expanduser().absolute())
        case None | str() | bool() | int() | float():
            return value
        case list() | tuple():
            return [_plain(inner, key) for inner in value]
    raise TypeError(f"{key} is an object of {type(value).__name__}, expected what a recipe can hold.")


def _lines(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    lines = []
    for number, row in enumerate(rows, start=1):
        try:
            lines.append(json.dumps(dict(row), ensure_ascii=False, default=_scalar))
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}, row {number} cannot be written as JSON: {error}.") from None
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> Any:
    """Numbers and arrays of numpy as JSON has them."""
    for method in ("tolist", "isoformat"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    raise TypeError(f"it holds an object of {type(value).__name__}")
