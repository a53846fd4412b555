"""Lines of a selection and the file that holds them, JSONL or parquet by its ending: as a whole, or not at
all.

Lines have the columns that SFT and DPO read. Columns of provenance begin with `from_`; in a pair those of one
side have its name behind that (`from_chosen_step`).
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from asyncrl.data.row_use import is_json
from asyncrl.data.rows import Row
from asyncrl.errors import DiskError, InputError
from asyncrl.journal.responses import ResponseTokens
from asyncrl.model.tokenizer import TextCodec
from asyncrl.readers.selection.candidate import Candidate
from asyncrl.records import Observed
from asyncrl.rollout.told_task import conversation_of
from asyncrl.system.files import find_refusal

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

TYPES = {
    "response": "string",
    "chosen": "string",
    "rejected": "string",
    "chosen_score": "double",
    "rejected_score": "double",
    "messages_sampled": "bool[]",
    "chosen_messages_sampled": "bool[]",
    "rejected_messages_sampled": "bool[]",
    "prompt_tokens": "int32[]",
    **{f"{side}_tokens": "int32[]" for side in ("response", "chosen", "rejected")},
    **{f"{side}_sampled": "bool[]" for side in ("response", "chosen", "rejected")},
    **{f"from_{name}": "string" for name in ("run", "row", "choice", "template", "tokenizer")},
    **{
        f"from_{side}{name}": kind
        for side in ("", "chosen_", "rejected_")
        for name, kind in {
            "response": "string",
            "step": "int64",
            "version_min": "int64",
            "version_max": "int64",
            "finish": "string",
            "num_tokens": "int64",
            "verdict": "string",
            "score": "double",
            "verifier": "string",
        }.items()
    },
}
"""Arrow types of the columns that have the same in every selection; others are as the rows have them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Columns that all lines have alike."""

    run: str
    """The run's folder, or the recipe or model that was asked."""
    choice: str
    template: str | None
    """Digests (`tasks/digests.py`); None where the model's folder is not on this machine."""
    tokenizer: str | None


def _as_it_is(row: Row) -> Row:
    return row


@dataclass(frozen=True, slots=True)
class LineMaker:
    origin: Origin
    codec: TextCodec | None
    """None where the model's folder is not on this machine."""
    has_turns: bool
    has_tokens: bool
    opened: Callable[[Row], Row] = _as_it_is
    """The row with the messages by which its environment opened the conversation."""

    def line(
        self, row: Row, found: Sequence[Candidate], tokens: Mapping[str, ResponseTokens]
    ) -> dict[str, Any]:
        """One response, or the chosen and the rejected one. `tokens` by response id, where they are asked
        for."""
        is_pair = len(found) == 2
        sides = list(zip(("chosen", "rejected") if is_pair else ("response",), found, strict=True))
        line: dict[str, Any] = {"prompt": row.prompt}
        for side, each in sides:
            line[side] = each.text
            if is_pair:
                line[f"{side}_score"] = each.correctness()
            if self.has_turns:
                name = f"{side}_messages" if is_pair else "messages"
                line[name], line[f"{name}_sampled"] = self.conversation(row, tokens[each.response_id])
        if self.has_tokens:
            first = found[0]
            asked = tokens[first.response_id] if first.generated is None else first.generated
            line["prompt_tokens"] = list(asked.prompt)
            for side, each in sides:
                line |= _response_tokens(side, each, tokens)
        spec = row.verifier
        line |= {
            "answer": row.answer if is_json(row.answer) else str(row.answer),
            # As a data row names its verifier.
            "verifier": {"name": spec.name, "options": dict(spec.options)} if spec.options else spec.name,
            "from_run": self.origin.run,
            "from_row": row.row_id,
            "from_choice": self.origin.choice,
            "from_template": self.origin.template,
            "from_tokenizer": self.origin.tokenizer,
        }
        for side, each in sides:
            line |= _provenance(f"from_{side}_" if is_pair else "from_", each)
        return line

    def conversation(self, row: Row, tokens: ResponseTokens) -> tuple[list[dict[str, Any]], list[bool]]:
        """All messages, and of each whether the policy wrote it."""
        assert self.codec is not None
        turns: list[list[int]] = [[]]
        observed: list[Observed] = []
        for part in tokens.parts:
            if isinstance(part, Observed):
                observed.append(_readable(part))
                turns.append([])
            else:
                turns[-1] += part.tokens
        told = conversation_of(turns, observed, self.codec)
        row = self.opened(row)
        opening = [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else row.prompt
        messages, are_sampled = list(opening), [False] * len(opening)
        for place, turn in enumerate(told.turns):
            answers = told.observations[place] if place < len(told.observations) else ()
            messages += [{"role": "assistant", "content": turn}, *map(dict, answers)]
            are_sampled += [True, *(False for _ in answers)]
        return messages, are_sampled


def _readable(part: Observed) -> Observed:
    """Without notes that were too long to be stored whole: the tokens tell what the model read."""
    try:
        json.loads(part.notes or "{}")
    except ValueError:
        return Observed(part.tokens)
    return part


def _provenance(prefix: str, each: Candidate) -> dict[str, Any]:
    found = {
        "response": each.response_id,
        "step": each.step,
        "version_min": each.version_min,
        "version_max": each.version_max,
        "finish": each.finish,
        "num_tokens": each.num_tokens,
        "verdict": each.score.outcome,
        "score": each.score.correctness,
        "verifier": each.verifier.name,
    }
    return {f"{prefix}{name}": value for name, value in found.items()}


def _response_tokens(side: str, each: Candidate, tokens: Mapping[str, ResponseTokens]) -> dict[str, Any]:
    """All tokens after the prompt, and of each whether the policy sampled it: what answered a turn is not."""
    if each.generated is not None:
        sampled = list(each.generated.response)
        return {f"{side}_tokens": sampled, f"{side}_sampled": [True] * len(sampled)}
    parts = tokens[each.response_id].parts
    return {
        f"{side}_tokens": [token for part in parts for token in part.tokens],
        f"{side}_sampled": [not isinstance(part, Observed) for part in parts for _ in part.tokens],
    }


JSONL, PARQUET = ".jsonl", ".parquet"
ROWS_AT_ONCE = 2048
"""Rows of parquet that wait to be written: their kinds decide those of the columns."""


def check_output(path: Path, *, replaces: bool) -> None:
    """Raises InputError for a file that cannot be made, or that is there and may not be replaced."""
    if path.suffix not in (JSONL, PARQUET):
        raise InputError(f"--out is {path}, expected a file that ends in {JSONL} or {PARQUET}.")
    if path.is_dir():
        raise InputError(f"--out is {path}, which is a folder. Name a file.")
    if path.exists() and not replaces:
        raise InputError(f"--out is {path}, which exists. Name another file, or give --force to replace it.")
    folder = next(above for above in path.absolute().parents if above.exists())
    if not folder.is_dir():
        raise InputError(f"--out is {path}, but {folder} is a file. Name another one.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"--out is {path}, but {folder} cannot be written to. Name another one.")


class Output:
    """A context manager: the file is whole once its block ends without an error. Without lines there is none.
    Raises DiskError."""

    def __init__(self, path: Path, types: Mapping[str, str]) -> None:
        """`types`: column -> type of Arrow, of those that have the same in every selection."""
        self.path = path
        self.num_lines = 0
        self._part = path.with_name(f".{path.name}.part")
        self._types = dict(types)
        self._lines: TextIO | None = None
        self._table: pyarrow.parquet.ParquetWriter | None = None
        self._waiting: list[Mapping[str, Any]] = []

    def __enter__(self) -> "Output":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.suffix == JSONL:
                self._lines = self._part.open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"--out is {self.path}, which could not be written: {error.strerror}."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        try:
            if kind is None and self.num_lines:
                self._guarded(self._close)
                self._guarded(lambda: os.replace(self._part, self.path))
        finally:
            # A full disk refuses what the buffers still hold, too.
            for file in (self._lines, self._table):
                if file is not None:
                    with contextlib.suppress(OSError):
                        file.close()
            self._part.unlink(missing_ok=True)

    def add(self, line: Mapping[str, Any]) -> None:
        """Columns of every line have the same names."""
        self.num_lines += 1
        if self._lines is None:
            self._waiting.append(line)
            if len(self._waiting) >= ROWS_AT_ONCE:
                self._guarded(self._write_waiting)
        else:
            text, lines = f"{json.dumps(line, ensure_ascii=False)}\n", self._lines
            self._guarded(lambda: lines.write(text))

    def _close(self) -> None:
        if self._lines is not None:
            self._lines.flush()
            os.fsync(self._lines.fileno())
            self._lines.close()
            return
        self._write_waiting()
        assert self._table is not None
        self._table.close()

    def _write_waiting(self) -> None:
        import pyarrow
        import pyarrow.parquet

        try:
            if self._table is None:
                schema = self._schema(self._waiting)
                self._table = pyarrow.parquet.ParquetWriter(self._part, schema)
            rows = [dict(row) for row in self._waiting]
            self._table.write_table(pyarrow.Table.from_pylist(rows, schema=self._table.schema))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError) as error:
            raise InputError(
                f"{self.path}: a column has values of several kinds, which parquet cannot hold: {error}. "
                f"Write {JSONL}, or select one --source at a time."
            ) from error
        self._waiting = []

    def _schema(self, rows: Sequence[Mapping[str, Any]]) -> "pyarrow.Schema":
        import pyarrow

        names = list(rows[0]) if rows else list(self._types)
        fields = []
        for name in names:
            if name in self._types:
                fields.append((name, _arrow_type(self._types[name])))
            else:
                fields.append((name, pyarrow.array([row[name] for row in rows]).type))
        return pyarrow.schema(fields)

    def _guarded(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            refusal = find_refusal(error, self.path.absolute().parent) or error.strerror or str(error)
            raise DiskError(
                f"--out {self.path} could not be written: {refusal}. Nothing of it is left. Free up disk "
                f"space, or name another folder, and run the same command again."
            ) from error


def _arrow_type(name: str) -> "pyarrow.DataType":
    import pyarrow

    if name.endswith("[]"):
        return pyarrow.list_(_arrow_type(name.removesuffix("[]")))
    return pyarrow.type_for_alias(name)
