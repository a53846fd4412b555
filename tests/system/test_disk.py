"""What the disk refuses becomes a sentence; what it does not is raised as it is."""

import errno
import os
from pathlib import Path

import pytest
from fakes.small_disk import refused_writes
from torch.distributed.checkpoint.api import CheckpointException

from asyncrl.errors import DiskError
from asyncrl.system.files import find_refusal, writing


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        DiskError, match=r"Publication v3 under .*No space left .* Free up disk space .* resumes"
    ):
        with writing("Publication v3", tmp_path / "publications"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_error_that_does_not_name_the_disk_is_traced_to_it_by_asking_the_disk(tmp_path: Path) -> None:
    # torch.save's words on a full disk.
    error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")
    with pytest.raises(DiskError, match="File too large") as caught, refused_writes():
        with writing("The checkpoint of version 4", tmp_path / "not" / "there"):
            raise error
    assert caught.value.__cause__ is error


def test_an_error_on_a_disk_that_takes_writes_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing("A file", tmp_path):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_found_behind_the_errors_that_were_raised_for_it(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    outer = RuntimeError("the checkpoint failed")
    outer.__cause__ = full
    assert find_refusal(outer, tmp_path) == os.strerror(errno.ENOSPC)
    # torch.distributed.checkpoint: what the ranks raised.
    of_ranks = CheckpointException("failed", {1: (full, None)})
    assert find_refusal(of_ranks, tmp_path) == os.strerror(errno.ENOSPC)
    assert find_refusal(RuntimeError("something else"), tmp_path) is None


def test_a_full_disk_is_found_in_the_words_of_a_library_in_rust(tmp_path: Path) -> None:
    # What safetensors raises, which is no OSError; by then its half file may be gone, and the disk has room.
    error = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert find_refusal(error, tmp_path) == os.strerror(errno.ENOSPC)
