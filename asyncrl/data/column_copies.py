"""Copies of data sources with one more column: a parquet file stays parquet; other files, folders, hub ids
and gyms become JSONL."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from asyncrl.data.files import PublishedRow
from asyncrl.data.gym_process import UNMADE
from asyncrl.data.row_use import json_columns
from asyncrl.data.rows import published_rows
from asyncrl.errors import InputError
from asyncrl.recipe import Source
from asyncrl.recipe.sources import DATA_FILES

PARQUET = ".parquet"


def is_file(source: Source) -> bool:
    """Whether it is one file; else a gym, a folder or a hub id."""
    path = None if source.path is None else Path(source.path)
    return path is not None and path.suffix in DATA_FILES and not path.is_dir()


def copy_name(source: Source, label: str, column: str) -> str:
    """Name of the file for a copy with `column`; `label` as in the ids of its rows."""
    is_parquet = is_file(source) and Path(source.path or "").suffix == PARQUET
    return f"{label}.{column}{PARQUET if is_parquet else '.jsonl'}"


def source_of_copy(source: Source, target: Path) -> dict[str, Any]:
    """The source that reads the copy of `source` at `target`, as a recipe names it."""
    kept = source.model_dump(include={"columns", "weight"}, exclude_defaults=True)
    return {"path": str(target), **kept}


@dataclass(frozen=True, slots=True)
class Copied:
    num_unmade: int = 0
    """Tasks that a gym could not make: the copy lacks them."""
    nulled: tuple[str, ...] = ()
    """Columns with values that JSON cannot hold, such as a date or an image: null in the copy."""


def write_copy(
    source: Source, target: Path, column: str, values: Mapping[int, float], key: str, *, split: str = "train"
) -> Copied:
    """The rows of `source` in their order, each with its value by number, null for one that has none; a
    column of that name is replaced. `split` is read where a source names none. Raises InputError."""
    if source.path is not None and target.resolve() == Path(source.path).resolve():
        raise InputError(f"--out would write over {source.path}, the data itself. Name another folder.")
    part = target.with_name(f".{target.name}.part")
    try:
        if target.suffix == PARQUET:
            _write_parquet(Path(source.path or ""), part, column, values)
            copied = Copied()
        else:
            with part.open("w", encoding="utf-8") as file:
                rows = published_rows(source, key, split)
                copied = _write_lines(rows, file, column, values, is_of_gym=source.gym is not None)
        os.replace(part, target)
        return copied
    except OSError as error:
        raise InputError(
            f"{target} could not be written: {error.strerror or error}. Name a folder with --out."
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _write_lines(
    rows: Iterable[PublishedRow], file: TextIO, column: str, values: Mapping[int, float], *, is_of_gym: bool
) -> Copied:
    num_unmade, nulled = 0, dict[str, None]()
    for found in rows:
        if is_of_gym and UNMADE in found.row:
            num_unmade += 1
            continue
        row = json_columns(found.row)
        lost = [str(name) for name in found.row if name not in row]
        nulled |= dict.fromkeys(lost)
        whole = {str(name): row.get(name) for name in found.row} | {column: values.get(found.number)}
        file.write(f"{json.dumps(whole, ensure_ascii=False)}\n")
    return Copied(num_unmade, tuple(nulled))


def _write_parquet(path: Path, part: Path, column: str, values: Mapping[int, float]) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    if column in table.column_names:
        table = table.drop_columns([column])
    found = [values.get(number) for number in range(1, table.num_rows + 1)]
    table = table.append_column(column, pyarrow.array(found, pyarrow.float64()))
    pyarrow.parquet.write_table(table, part)
