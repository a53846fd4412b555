"""Files of text in UTF-8, as people write them: what is no text is named with its line and what it may be."""

import codecs
import io
import shlex
from pathlib import Path

from asyncrl.errors import InputError

_BEGINNINGS = {
    b"\x1f\x8b": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"PK\x03\x04": "a zip archive or a spreadsheet (.xlsx)",
    b"PAR1": "a parquet file",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3": "an SQLite database",
    codecs.BOM_UTF32_LE: "text in UTF-32",
    codecs.BOM_UTF32_BE: "text in UTF-32",
    codecs.BOM_UTF32_LE: "text in UTF-32",
    codecs.BOM_UTF32_BE: "text in UTF-32",
    codecs.BOM_UTF32_LE: "text in UTF-32",
    codecs.BOM_UTF32_BE: "text in UTF-32",
    codecs.BOM_UTF16_LE: "text in UTF-16",
    codecs.BOM_UTF16_BE: "text in UTF-16",
}
"""First bytes of a file -> what it is."""


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark and with "\\n" alone as line end. Raises OSError, and
    InputError for what is not UTF-8."""
    return decoded(path.read_bytes(), str(path))


def decoded(content: bytes, path: str, *, line: int = 1) -> str:
    """The text of `content`, which begins at `line` of the file. Raises InputError that names the file, line
    and column of the first byte that is not UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(_complaint(error.object, error.start, path, line)) from None
    if line == 1 and "\0" in text[:2]:
        # UTF-16 without its mark is valid UTF-8 where all letters are ASCII.
        raise InputError(_of_a_kind(path, "text in UTF-16"))
    return io.StringIO(text, newline=None).read()


def _complaint(content: bytes, position: int, path: str, line: int) -> str:
    # Only the file's own beginning tells what it is.
    known = (kind for first, kind in _BEGINNINGS.items() if content.startswith(first))
    if line == 1 and (kind := next(known, None)):
        return _of_a_kind(path, kind)
    line += content.count(b"\n", 0, position)
    column = position - content.rfind(b"\n", 0, position)
    return (
        f"{path}:{line}: not UTF-8 text: byte 0x{content[position]:02x} in column {column}. Save the file as "
        f"UTF-8."
    )


def _of_a_kind(path: str, kind: str) -> str:
    way = "Convert it first."
    if encoding := kind.partition("text in ")[2]:
        file = shlex.quote(path)
        way = f"Convert it with: iconv -f {encoding} -t UTF-8 {file} > utf8 && mv utf8 {file}"
    return f"{path} is {kind}, not UTF-8 text. {way}"
