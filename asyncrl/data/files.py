"""Published data as plain rows: JSONL, JSON, CSV, parquet, folders of them, task folders of Harbor, and
repositories of a hub.

Files are read here, so that an error names its line. The `datasets` library finds the splits and
configurations of a folder or repository, and reads them into its usual cache. Their CSV is read here too,
so that a value is the same text in a file and in a folder.
"""

import codecs
import csv
import gzip
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from asyncrl.data.columns import ToRow, names_read
from asyncrl.data.harbor import harbor_row, task_folders
from asyncrl.errors import InputError
from asyncrl.recipe.file import PATH_RULE
from asyncrl.recipe.sources import EXPECTED, how_to_convert, is_data_file
from asyncrl.system.files import decoded
from asyncrl.system.hub import fetch, is_hub_id
from asyncrl.system.paths import nearest_path
from asyncrl.system.words import kind_of
from verifiers.strict_json import Flaw, flaw_in, loads_with_flaws

if TYPE_CHECKING:
    import datasets

Row = dict[str, Any]
PATTERNS = (
    *("*.parquet", "*.jsonl", "*.json", "*.csv", "*.tsv", "*.arrow", "*.gz", "*.zst"),
    *("README.md", "*.yaml"),
)
"""Files that are read of a hub's repository: data, and the card that declares splits and configurations."""
JSONL = (".jsonl", ".ndjson")
CSV = {".csv": ",", ".tsv": "\t"}
"""Ending -> separator."""
_ROWS_PER_BATCH = 4096
_BUFFER_BYTES = 2**20
"""Buffer of a parquet file, per column."""


class PublishedRow(NamedTuple):
    """A row and where it stands."""

    where: str
    number: int
    """Line of a JSONL file, else how many rows there are up to this one."""
    row: Row


def read_rows(
    path: str,
    *,
    key: str,
    folder: str | None = None,
    config: str | None = None,
    split: str = "train",
    revision: str | None = None,
    make: ToRow | None = None,
) -> Iterator[PublishedRow]:
    """Each row at `path`: a file, folder or hub id, named by the recipe's `key`.

    `folder` (inside of it), `config`, `split` and `revision` are those of a folder or hub id. With `make`
    rows may lack columns that it does not read. Every value of CSV is text. Raises InputError.
    """
    advice = how_to_convert(path)
    if Path(path).is_dir() or (not advice and is_hub_id(path)):
        if is_hub_id(path):
            whole, name = fetch(path, revision, kind="dataset", key=key, files=PATTERNS).folder, path
        else:
            whole, name = Path(path), Path(path).name
        if folder is not None:
            if not (whole / folder).is_dir():
                names = sorted(entry.name for entry in whole.iterdir() if entry.is_dir())
                known = f" It has {', '.join(names)}." if names else ""
                raise InputError(f"{key} is {path}, which has no folder {folder}.{known}")
            whole, name = whole / folder, f"{name}/{folder}"
        if tasks := task_folders(whole):
            for number, task in enumerate(tasks, start=1):
                yield PublishedRow(str(task), number, harbor_row(task))
            return
        yield from _read_folder(whole, name, key, config, split, make, is_of_hub=is_hub_id(path))
    elif Path(path).suffix in JSONL:
        with _opened(Path(path), key) as file:
            yield from _read_jsonl(Path(path), file)
    elif Path(path).suffix == ".json":
        yield from _read_json(Path(path), key)
    elif Path(path).suffix == ".parquet":
        yield from _read_parquet(Path(path), key, make)
    elif Path(path).suffix in CSV:
        yield from _read_csv(Path(path), key)
    elif not Path(path).exists():
        raise _missing(Path(path), key)
    else:
        raise InputError(f"{key} is {path}, expected {EXPECTED}, a folder of them, or a hub id.{advice}")


def _missing(path: Path, key: str) -> InputError:
    near = nearest_path(path, lambda each: each.is_dir() or is_data_file(each.name))
    return InputError(
        f"{key} is {path}, which does not exist. Set {key} to {EXPECTED}, a folder of them, or a hub id. "
        f"{PATH_RULE}{near}"
    )


def _opened(path: Path, key: str) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise _missing(path, key) from None
    except OSError as error:
        raise InputError(f"{key} is {path}, which cannot be read: {error}") from error


def _read_jsonl(path: Path, lines: Iterable[bytes]) -> Iterator[PublishedRow]:
    """`lines` end with LF alone: JSON may hold other ends of a line, such as U+2028, as they are."""
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.isspace() and line:
            where = f"{path}:{number}"
            text = decoded(line, str(path), line=number)
            try:
                row, flaws = parse_json(text, str(path), line=number)
            except InputError as error:
                raise InputError(f"{error}{_table_advice(path, line) if number == 1 else ''}") from None
            if flaws:
                raise _no_json(where, flaws[0])
            yield PublishedRow(where, number, _object(row, where))


def _table_advice(path: Path, line: bytes) -> str:
    """For a first line that is text but not JSON."""
    for separator, ending in ((b"\t", ".tsv"), (b",", ".csv")):
        if separator in line and not line.lstrip().startswith((b"{", b"[")):
            return f" It looks like {ending[1:].upper()}: rename it to {path.with_suffix(ending)}."
    return ""


def _read_json(path: Path, key: str) -> Iterator[PublishedRow]:
    """Rows of a list of objects, of an object with one such list ({"data": [...]}), or of JSON lines."""
    with _opened(path, key) as file:
        raw = file.read()
    try:
        content, flaws = parse_json(decoded(raw, str(path)), str(path))
    except InputError as error:
        # Lines of JSON are published under this name, too: then more follows the first object.
        if "Extra data" not in str(error):
            raise
        yield from _read_jsonl(path, io.BytesIO(raw))
        return
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else content
    if flaws:
        rows = content if isinstance(content, list) else []
        for number, row in enumerate(rows, start=1):
            if flaw := flaw_in(row):
                raise _no_json(f"{path}, row {number}", flaw)
        raise _no_json(str(path), flaws[0])
    if not isinstance(content, list):
        raise InputError(f"{path} holds {kind_of(content)}, expected a list of rows.")
    for number, row in enumerate(content, start=1):
        where = f"{path}, row {number}"
        yield PublishedRow(where, number, _object(row, where))


def _read_csv(path: Path, key: str) -> Iterator[PublishedRow]:
    """Rows of a table with a header (RFC 4180); a quoted value may hold ends of lines. Packed by gzip, as
    hubs publish it, it is unpacked."""
    with _opened(path, key) as file:
        raw = file.read()
    text = decoded(gzip.decompress(raw) if path.suffix == ".gz" else raw, str(path))
    csv.field_size_limit(sys.maxsize)  # 131,072 characters as it comes
    separator = CSV.get(path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix, ",")
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        names = Counter(table.fieldnames or ())
        if repeated := [name for name, count in names.items() if count > 1]:
            raise InputError(
                f"{key} is {path}, in which several columns are called {repeated[0]}. Rename them."
            )
        for number, row in enumerate(table, start=1):
            if None in row or None in row.values():
                raise InputError(
                    f"{path}, row {number} has another number of values than the header, which has "
                    f"{len(names)}. Correct the row."
                )
            yield PublishedRow(f"{path}, row {number}", number, row)
    except csv.Error as error:
        raise InputError(
            f"{path}: not CSV after line {table.line_num}: {error}. Correct the file."
        ) from error


def _no_json(where: str, flaw: Flaw) -> InputError:
    return InputError(f"{where}: not JSON: {flaw.complaint}. Correct the row.")


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise InputError(f"{where} is {kind_of(row)}, expected an object with the columns as keys.")
    return row


def parse_json(text: str, path: str, *, line: int | None = None) -> tuple[Any, list[Flaw]]:
    """The value and its flaws; `line` of the file, or the whole of it. Raises InputError for what is not
    JSON, also for half of a surrogate pair."""
    where = path if line is None else f"{path}:{line}"
    try:
        raw, flaws = loads_with_flaws(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    # Only these escapes make halves.
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(raw, ensure_ascii=False, default=str).encode("utf-8")
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise InputError(
                f"{where}: {half} is half of a surrogate pair, which is not a character. Write the character "
                f"itself, or both halves."
            ) from None
    return raw, flaws


def _read_parquet(path: Path, key: str, make: ToRow | None) -> Iterator[PublishedRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        # Read in pieces: a row group may hold a million rows, and buffers made ahead stay until the end.
        with pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            columns = Counter(file.schema_arrow.names)
            if repeated := [name for name, count in columns.items() if count > 1]:
                raise InputError(
                    f"{key} is {path}, in which several columns are called {repeated[0]}. Rename them."
                )
            names = names_read(make, file.schema_arrow)
            number = 0
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=names):
                for row in batch.to_pylist():
                    number += 1
                    yield PublishedRow(f"{path}, row {number}", number, row)
    except FileNotFoundError:
        raise _missing(path, key) from None
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{key} is {path}, which cannot be read as parquet: {error}") from error


def _read_folder(
    folder: Path, name: str, key: str, config: str | None, split: str, make: ToRow | None, *, is_of_hub: bool
) -> Iterator[PublishedRow]:
    # Imported here: it takes seconds, and a file does not need it.
    import datasets

    try:
        builder = datasets.load_dataset_builder(str(folder), name=config)
        read = {split: [Path(file) for file in files] for split, files in builder.config.data_files.items()}
        # A repository is read as its page on the hub shows it.
        if not is_of_hub and not _is_declared(folder):
            _check_all_are_read(folder, {file for files in read.values() for file in files}, key)
        if builder.name == "csv" and split in read:
            tables = (found for file in read[split] for found in _read_csv(file, key))
            yield from (found._replace(number=number) for number, found in enumerate(tables, start=1))
            return
        builder.download_and_prepare()
        rows = builder.as_dataset(split=split)
    except InputError:
        raise
    except Exception as error:  # the library raises whatever its readers do
        # Its own error often only says that there was one.
        cause = error.__cause__ or error
        said = str(cause).replace(str(folder), name).strip().splitlines()
        raise InputError(
            f"{key} is {name}, whose split {split!r}{f' of {config!r}' if config else ''} cannot be read: "
            f"{type(cause).__name__}: {said[0] if said else ''}"
        ) from error
    for number, row in enumerate(_rows_of_dataset(rows, make), start=1):
        yield PublishedRow(f"{name} {split}, row {number}", number, row)


def _is_declared(folder: Path) -> bool:
    """Whether the folder's card says which files are read."""
    cards = (folder / "README.md", folder / ".huggingface.yaml")
    return any(re.search(rb"^configs:", card.read_bytes(), re.MULTILINE) for card in cards if card.is_file())


def _check_all_are_read(folder: Path, read: set[Path], key: str) -> None:
    """The library reads the format that most files have, and leaves the others out. Raises InputError."""
    from datasets.data_files import FILES_TO_IGNORE

    endings = {file.suffix for file in read}
    for file in sorted(folder.resolve().rglob("*")):
        inside = file.relative_to(folder.resolve())
        is_hidden = any(part.startswith((".", "__")) for part in inside.parts)
        if file in read or is_hidden or file.name in FILES_TO_IGNORE or not is_data_file(file.name):
            continue
        # Another file of the same format is of no split, by its name.
        if file.suffix not in endings:
            raise InputError(
                f"{key} is {folder}, where {inside} would not be read beside {min(read).name}: a folder is "
                f"read in one format. Move it away, or list the files in {key}, each as a path of its own."
                f"{how_to_convert(str(inside))}"
            )


def _rows_of_dataset(rows: "datasets.Dataset", make: ToRow | None) -> Iterator[Row]:
    from datasets.features.features import require_decoding

    names = names_read(make, rows.data.schema)
    if any(require_decoding(rows.features[name]) for name in names):
        # Images and the like are made by the library.
        yield from rows
        return
    for table in rows.with_format("arrow").iter(_ROWS_PER_BATCH):
        for batch in table.to_batches():
            yield from batch.select(names).to_pylist()
