"""A full or read-only disk as one sentence: libraries report it by errors of their own, not all of which are
OSErrors or name the cause (torch.save: "unexpected pos 64 vs 0").

A restart of the trainer does not help against a full disk: the run ends, and resumes once there is room.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from asyncrl.errors import DiskError

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
