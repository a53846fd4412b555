"""The file of a selection, JSONL or parquet by its ending: there as a whole, or not at all.

Lines go to a file next to it, which takes its name at the end and is removed when something fails.
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from asyncrl.errors import DiskError, InputError
from asyncrl.system.files import find_refusal

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

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
                self._finish()
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
            text = f"{json.dumps(line, ensure_ascii=False)}\n"
            self._guarded(lambda: self._write_text(text))

    def _write_text(self, text: str) -> None:
        assert self._lines is not None
        self._lines.write(text)

    def _finish(self) -> None:
        self._guarded(self._close)
        self._guarded(lambda: os.replace(self._part, self.path))

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
