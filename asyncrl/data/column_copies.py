"""Copies of data files with one more column: JSONL stays JSONL, parquet stays parquet, JSON becomes JSONL."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from asyncrl.data.files import read_rows
from asyncrl.errors import InputError
from asyncrl.recipe import Source
from asyncrl.recipe.data_files import DATA_FILES

PARQUET = ".parquet"


def copy_name(source: Source, column: str) -> str | None:
    """Name of the file for a copy with `column`; None for what is no file: a gym, a folder, a hub id."""
    path = None if source.path is None else Path(source.path)
    if path is None or path.suffix not in DATA_FILES or path.is_dir():
        return None
    return f"{path.stem}.{column}{PARQUET if path.suffix == PARQUET else '.jsonl'}"


def write_copy(source: Source, target: Path, column: str, values: Mapping[int, float], key: str) -> None:
    """The rows of the file of `source`, in their order, each with its value by number, null for one that has
    none; a column of that name is replaced. Raises InputError."""
    assert source.path is not None
    if target.resolve() == Path(source.path).resolve():
        raise InputError(f"--out would write over {source.path}, the data itself. Name another folder.")
    part = target.with_name(f".{target.name}.part")
    try:
        if target.suffix == PARQUET:
            _write_parquet(Path(source.path), part, column, values)
        else:
            with part.open("w", encoding="utf-8") as file:
                for found in read_rows(source.path, key=key):
                    row = {**found.row, column: values.get(found.number)}
                    file.write(f"{json.dumps(row, ensure_ascii=False)}\n")
        os.replace(part, target)
    except OSError as error:
        raise InputError(
            f"{target} could not be written: {error.strerror or error}. Name a folder with --out."
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _write_parquet(path: Path, part: Path, column: str, values: Mapping[int, float]) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    if column in table.column_names:
        table = table.drop_columns([column])
    found = [values.get(number) for number in range(1, table.num_rows + 1)]
    table = table.append_column(column, pyarrow.array(found, pyarrow.float64()))
    pyarrow.parquet.write_table(table, part)
