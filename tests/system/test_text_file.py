"""Bytes that are no text are named with file, line and column, or by what they are."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import InputError
from asyncrl.system.files import decoded, read_text


@given(before=st.text(), after=st.binary())
def test_the_place_of_the_first_byte_that_is_no_text_is_named(before: str, after: bytes) -> None:
    text = f"x{before}".encode()
    line, column = text.count(b"\n") + 1, len(text) - text.rfind(b"\n")
    with pytest.raises(InputError, match=rf"^f:{line}: not UTF-8 text: byte 0xff in column {column}\."):
        decoded(text + b"\xff" + after, "f")


@given(text=st.text().filter(lambda text: "\0" not in text[:3]))
def test_text_is_read_as_python_reads_it(text: str) -> None:
    assert decoded(text.encode(), "f") == text.removeprefix("\ufeff").replace("\r\n", "\n").replace(
        "\r", "\n"
    )


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(tmp_path / "f") == "a\nb"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"a", mtime=0), "is compressed by gzip, not UTF-8 text"),
        (
            "a,b".encode("utf-16"),
            "is text in UTF-16, not UTF-8 text. Convert it with: iconv -f UTF-16 -t UTF-8 f >",
        ),
        ("a,b".encode("utf-16-le"), "is text in UTF-16"),
        ("a,b".encode("utf-16-be"), "is text in UTF-16"),
        ("a,b".encode("utf-32"), "is text in UTF-32"),
        (b"PK\x03\x04\x14\x00\xff", "is a zip archive or a spreadsheet"),
        (b"\x28\xb5\x2f\xfd", "is compressed by zstd"),
    ],
)
def test_a_file_of_a_known_kind_is_called_by_it(content: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        decoded(content, "f")
