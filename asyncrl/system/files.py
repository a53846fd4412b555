"""Files and folders: UTF-8 text, replaced as a whole, recognized by digest; a full disk as one sentence."""

import codecs
import contextlib
import errno
import hashlib
import io
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncrl.errors import DiskError, InputError
from asyncrl.system.words import kind_of


def sha256_of(path: Path) -> str:
    """In hexadecimal; reads every byte. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def overall_digest(digests: Mapping[str, str]) -> str:
    """SHA-256 of names and their digests, in hexadecimal, whatever their order."""
    lines = (f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def part_of(target: Path) -> Path:
    """Where `target` is written until it is whole, next to it."""
    return target.with_name(f".{target.name}.part")


def fresh_part(target: Path) -> Path:
    """An empty folder next to `target` to write into; what a killed process left there is removed."""
    part = part_of(target)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def replace(part: Path, target: Path) -> None:
    """Renames the finished `part` to `target`; an older `target` is removed first."""
    remove(target)
    os.rename(part, target)
    _sync(target.parent)


def remove(folder: Path) -> None:
    """Deletes a folder; a kill in between leaves no half of it under its own name."""
    if folder.exists():
        trash = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(trash, ignore_errors=True)
        os.rename(folder, trash)
        shutil.rmtree(trash)


def sync_tree(folder: Path) -> None:
    """Makes the folder's files durable before its rename makes them visible."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(target: Path, text: str) -> None:
    """Writes next to `target` and renames. Raises OSError, and then the former file is still there."""
    part = part_of(target)
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, target)
    except OSError:
        part.unlink(missing_ok=True)
        raise


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
    codecs.BOM_UTF16_LE: "text in UTF-16",
    codecs.BOM_UTF16_BE: "text in UTF-16",
}
"""First bytes of a file -> what it is."""


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark and with "\\n" alone as line end. Raises OSError, and
    InputError for what is not UTF-8."""
    return decoded(path.read_bytes(), str(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no file. Raises InputError."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_text(path))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {kind_of(content)}, expected an object.")
    return content


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


# A restart of the trainer does not help against a full disk: the run ends, and resumes once there is room.
PROBE_BYTES = 2**16
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
REFUSALS = (*FULL_DISK, errno.EROFS)


@contextlib.contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Raises DiskError when `what` was not written because the disk under `folder` takes nothing more."""
    try:
        yield
    except Exception as error:
        refusal = find_refusal(error, folder)
        if refusal is None:
            raise
        raise DiskError(
            f"{what} under {folder} could not be written: {refusal}. Free up disk space and run the same "
            f"command again: it resumes."
        ) from error


def find_refusal(error: BaseException, folder: Path) -> str | None:
    """Why the disk under `folder` does not take what `error` could not write; None when it would."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in REFUSALS:
            return os.strerror(cause.errno)
        # Libraries in Rust (safetensors): "I/O error: No space left on device (os error 28)".
        for number in REFUSALS:
            if f"(os error {number})" in str(cause):
                return os.strerror(number)
    return ask_disk(folder)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and what it was raised for, of other ranks too (torch.distributed.checkpoint)."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        for failure, *_ in getattr(error, "failures", {}).values():
            yield failure
        error = error.__cause__ or error.__context__


def ask_disk(folder: Path) -> str | None:
    """Why the disk under `folder` takes nothing more; None when it does."""
    folder = next(there for there in (folder, *folder.parents) if there.is_dir())
    probe = folder / ".probe"
    try:
        with probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as refusal:
        return refusal.strerror
    finally:
        # A disk that is read-only has no probe to remove.
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return None
