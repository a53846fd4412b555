"""Endings of files with rows: those that are read, and how to convert others that hold tables."""

import shlex
from pathlib import PurePath

DATA_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""Read as they are."""
EXPECTED = "a .jsonl, .json, .csv, .tsv or .parquet file"
_PANDAS = {
    # As text: a gold of 007 is not 7.
    ".xlsx": "read_excel({path!r}, dtype=str, keep_default_na=False)",
    ".xls": "read_excel({path!r}, dtype=str, keep_default_na=False)",
    ".ods": "read_excel({path!r}, dtype=str, keep_default_na=False)",
    ".feather": "read_feather({path!r})",
    ".orc": "read_orc({path!r})",
    ".pkl": "read_pickle({path!r})",
    ".pickle": "read_pickle({path!r})",
}
_UNPACK = {
    ".gz": "gunzip -k",
    ".zst": "zstd -d",
    ".bz2": "bunzip2 -k",
    ".xz": "unxz -k",
    ".zip": "unzip",
    ".tar": "tar xf",
    ".tgz": "tar xzf",
}
OTHER_FILES = (*_PANDAS, *_UNPACK, ".arrow")
"""Hold rows, too, but have to be converted first."""


def is_data_file(name: str) -> bool:
    """Whether the ending says that the file holds rows, readable or not."""
    return name.endswith((*DATA_FILES, *OTHER_FILES))


def how_to_convert(path: str) -> str:
    """A sentence with the command that makes a readable file of `path`; empty for an unknown ending."""
    ending = PurePath(path).suffix
    made = path.removesuffix(ending)
    if ending in _UNPACK:
        return f" Unpack it with: {_UNPACK[ending]} {shlex.quote(path)}"
    if ending == ".arrow":
        code = f"import datasets; datasets.Dataset.from_file({path!r}).to_parquet({made + '.parquet'!r})"
    elif ending in _PANDAS:
        read = _PANDAS[ending].format(path=path)
        code = (
            f"import pandas; pandas.{read}.to_json({made + '.jsonl'!r}, orient='records', lines=True, "
            f"force_ascii=False)"
        )
    else:
        return ""
    return f" Convert it with: python -c {shlex.quote(code)}"
