"""The rows of a recipe's data sources: read, mapped to columns, checked as far as that needs no model."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.data.columns import READY, Columns, NoAnswer, NullColumn, ToRow, column, nearest_key, to_row
from asyncrl.data.files import PublishedRow, read_rows
from asyncrl.data.gym import gym_row, gym_rows
from asyncrl.data.row_use import RowUse, json_columns
from asyncrl.errors import InputError, did_you_mean
from asyncrl.recipe import Answering, ColumnMapping, Data, Source, Verifying
from asyncrl.recipe.file import absolute_object
from asyncrl.records import EnvironmentSpec, VerifierSpec
from asyncrl.system.hub import is_hub_id
from asyncrl.system.plugins import load_object

Prompt = str | list[dict[str, Any]]


class Row(NamedTuple):
    """One row, its answer not yet parsed."""

    where: str
    row_id: str
    """Unique among the sources it was read with: "<label>:<number>"."""
    source: int
    """Index of its source."""
    prompt: Prompt
    answer: Any
    verifier: VerifierSpec
    environment: EnvironmentSpec | None = None
    columns: Mapping[str, Any] | None = None
    """As published, with what a function of columns adds, as far as they are JSON; None where nothing reads
    them."""
    picked: Mapping[str, Any] = {}
    """The columns that choose rows; null inside of null."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A row whose column holds no answer."""

    where: str
    complaint: str
    """The complaint, with the place."""
    picked: Mapping[str, Any] = field(default_factory=dict)
    """As a row's."""


def train_rows(
    data: Data, verifying: Verifying, use: RowUse, grader: VerifierSpec | None = None
) -> Iterator[Row | Unanswered]:
    return rows_of(data.train_sources(), "data.train", verifying, use, split="train", grader=grader)


def heldout_rows(
    data: Data, verifying: Verifying, use: RowUse, grader: VerifierSpec | None = None
) -> Iterator[Row | Unanswered]:
    return rows_of(data.heldout_sources(), "data.heldout", verifying, use, split="test", grader=grader)


def grader_of(section: Answering) -> VerifierSpec | None:
    """The verifier of all rows of an evaluation; None where rows have their own."""
    return None if section.verifier is None else VerifierSpec(section.verifier, section.verifier_options)


def rows_of(
    sources: Sequence[Source],
    key: str,
    verifying: Verifying,
    use: RowUse,
    *,
    split: str,
    grader: VerifierSpec | None = None,
) -> Iterator[Row | Unanswered]:
    """The rows of all sources, one after the other; `split` is read where a source names none. `grader`
    grades in place of the verifiers that rows name.

    Raises InputError with the place of a row that cannot be read.
    """
    columns = [columns_of(source, key) for source in sources]
    if not use.has_answers:
        columns = [_prompt_alone(make) for make in columns]
    labels = labels_of(sources, split)
    for index, (source, make) in enumerate(zip(sources, columns, strict=True)):
        specs = _Specs(verifying, grader)
        needed = None if _reads_all(use, specs, make) else make
        for found in published_rows(source, key, split, needed):
            yield _row(found, make, index, labels[index], specs, use)


def published_rows(source: Source, key: str, split: str, make: ToRow | None = None) -> Iterator[PublishedRow]:
    """The rows of a source as they are published; with `make` they may lack columns that it does not read.
    Raises InputError."""
    if source.path is None:
        return gym_rows(source, key)
    is_of_hub = is_hub_id(source.path)
    if source.revision is not None and not is_of_hub:
        raise InputError(
            f'{key} is {source.path} with the revision "{source.revision}", but only a hub id has revisions. '
            f"Leave the revision out."
        )
    if not is_of_hub and not Path(source.path).is_dir():
        for name, value in (("folder", source.folder), ("config", source.config), ("split", source.split)):
            if value is not None:
                raise InputError(
                    f'{key} is {source.path} with the {name} "{value}", but only a folder or a hub id has '
                    f"one. Leave the {name} out."
                )
    return read_rows(
        source.path,
        key=key,
        folder=source.folder,
        config=source.config if isinstance(source.config, str) else None,
        split=source.split or split,
        revision=source.revision,
        make=make,
    )


def columns_of(source: Source, key: str) -> ToRow:
    """The function that makes a row of a published one. Raises InputError for a name that means nothing."""
    if source.gym is not None:
        return gym_row
    given = source.columns
    if isinstance(given, ColumnMapping):
        named = given.model_dump(exclude={"response", "messages", "chosen", "rejected"})
        # Without an answer nothing judges the rows (recipe/stage.py).
        return Columns(**named | {"answer": named["answer"] or named["prompt"]})
    if given in READY:
        return READY[given]
    if ":" not in given:
        raise InputError(
            f'{key} has columns "{given}", expected {", ".join(READY)}, a mapping with prompt and answer, or '
            f'a function "package.module:name" or "./file.py:name".{did_you_mean(given, READY)}'
        )
    function = load_object(given)
    if not callable(function):
        raise InputError(f'{key} has columns "{given}", which is not a function.')
    made: ToRow = function
    return made


def labels_of(sources: Sequence[Source], split: str) -> list[str]:
    """Label of each source, for the ids of its rows: its file's stem, or its name and split; no two alike."""
    labels: list[str] = []
    for source in sources:
        label = _label(source, split)
        taken, number = label, 2
        while taken in labels:
            taken, number = f"{label}~{number}", number + 1
        labels.append(taken)
    return labels


def _prompt_alone(make: ToRow) -> ToRow:
    """Columns without one for an answer; a function makes what it makes."""
    if not isinstance(make, Columns):
        return make
    return dataclasses.replace(make, answer=make.prompt, answer_after=None, is_answer_boxed=False)


def _label(source: Source, split: str) -> str:
    if source.path is None:
        return f"gym-{source.gym}"
    path = Path(source.path)
    if not is_hub_id(source.path) and not path.is_dir():
        return path.stem
    config = source.config if isinstance(source.config, str) else None
    return "-".join(part for part in (path.name, source.folder, config, source.split or split) if part)


def _row(
    found: PublishedRow, make: ToRow, source: int, label: str, specs: "_Specs", use: RowUse
) -> Row | Unanswered:
    try:
        made = to_row(make, found.row, found.where)
    except NoAnswer as error:
        return Unanswered(found.where, str(error), _picked(found.row, found.where, use))
    if not isinstance(made, dict) or not made.keys() >= {"prompt", "answer"}:
        raise InputError(
            f'{found.where}: columns made {str(made)[:80]!r} of the row, expected an object with "prompt" '
            f'and "answer".'
        )
    prompt = made["prompt"]
    check_prompt(prompt, found.where)
    spec = specs.get(made.get("verifier"), found.where)
    environment = use.environment(made.get("environment"), found.where)
    columns = None
    if use.keeps_columns(spec, found.where):
        added = {name: made[name] for name in made if name not in ("prompt", "verifier", "environment")}
        columns = json_columns({**added, **found.row})
    row_id = f"{label}:{found.number}"
    picked = _picked({**made, **found.row}, found.where, use) if use.picked else {}
    answer = made["answer"] if use.has_answers else None
    return Row(found.where, row_id, source, prompt, answer, spec, environment, columns, picked)


def _picked(row: Mapping[str, Any], where: str, use: RowUse) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in use.picked:
        try:
            found[name] = column(row, name)
        except NullColumn:
            found[name] = None
        except KeyError:
            raise InputError(
                f'{where}: no "{name}", which data.filter or data.selection names; the row has '
                f"{', '.join(map(str, row)) or 'no keys'}.{nearest_key(name, row)}"
            ) from None
    return found


def _reads_all(use: RowUse, specs: "_Specs", make: ToRow) -> bool:
    if use.picked:
        return True
    try:
        return use.keeps_columns(specs.usual(make), "")
    except InputError:
        # The first row that names the verifier says so, with its place.
        return False


def check_prompt(prompt: Any, where: str, *, name: str = "prompt") -> None:
    """Raises InputError for what is neither text nor chat messages; `name` is its column's."""
    if isinstance(prompt, list) and prompt:
        for position, message in enumerate(prompt):
            _check_message(message, f"{where}: message {position + 1}", is_last=position == len(prompt) - 1)
    elif not (isinstance(prompt, str) and prompt):
        raise InputError(
            f'{where}: "{name}" is {str(prompt)[:80]!r}, expected text or a list of chat messages'
        )


def _check_message(message: Any, where: str, *, is_last: bool) -> None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InputError(
            f'{where} is {str(message)[:80]!r}, expected an object with "role" and "content", both text'
        )
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls") and not is_last):
        return
    if "content" not in message:
        raise InputError(f'{where} has no "content"; it has {", ".join(message)}')
    if isinstance(content, list):
        raise InputError(f'{where}: "content" is a list of parts, expected text. Join the texts to one.')
    raise InputError(f'{where}: "content" is {str(content)[:80]!r}, expected text')


class _Specs:
    """Specifications of verifiers as rows name them: one object for all rows that name the same."""

    def __init__(self, verifying: Verifying, grader: VerifierSpec | None = None) -> None:
        self._grader = grader
        self._verifying = verifying
        self._default = VerifierSpec(verifying.default, verifying.options)
        self._named: dict[str, VerifierSpec] = {}

    def usual(self, make: ToRow) -> VerifierSpec:
        """The verifier of rows that name none."""
        named = make.verifier if isinstance(make, Columns) else None
        return self.get(named, "columns")

    def get(self, raw: Any, where: str) -> VerifierSpec:
        if self._grader is not None:
            return self._grader
        match raw:
            case None:
                return self._default
            case str():
                if raw not in self._named:
                    self._named[raw] = VerifierSpec(raw, self._options(raw))
                return self._named[raw]
            case {"name": str(name), **rest} if rest.keys() <= {"options"}:
                options = rest.get("options") or {}
                if isinstance(options, dict):
                    return VerifierSpec(name, options)
        raise InputError(
            f'{where}: "verifier" is {str(raw)[:80]!r}, expected a name or {{"name": ..., "options": ...}}'
        )

    def _options(self, name: str) -> dict[str, Any]:
        default = self._verifying.default
        is_default = absolute_object(name, self._verifying.own_files()) == default
        return self._verifying.options if name == default or is_default else {}
