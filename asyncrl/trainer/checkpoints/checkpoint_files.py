"""The files of a checkpoint, in the format of torch.distributed.checkpoint: one of each rank, and an index.

Each rank writes what it alone holds and its share of what others hold too, and hashes it while it writes. A
reader takes what it holds from whatever files have it.

One save at a time is written during training, which waits for the copy alone, or for the save before if that
is not done yet. Where memory has no room for a copy, training waits for the whole write instead. Each rank
writes what was agreed at the first save. The threads of all ranks use a gloo group of their own, so their
collectives never meet training's. A write that fails on one rank fails on all, and is raised in training at
the next call.
"""

import contextlib
import copy
import dataclasses
import hashlib
import io
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.utils import _DistWrapper

from asyncrl.errors import AsyncrlError, DiskError
from asyncrl.system.files import find_refusal
from asyncrl.trainer.checkpoints.training_state import SharedTensor
from asyncrl.trainer.ranks import ranks

log = logging.getLogger(__name__)

State = dict[str, object]
"""By name a SharedTensor, or anything else that can be pickled, which one rank alone writes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """The agreed division of a checkpoint's writes among the ranks."""

    own: SavePlan
    metadata: Metadata | None
    """The index without the places in files; on the first rank."""


def agree(state: State, group: dist.ProcessGroup) -> Agreement:
    """Checks that the ranks' boxes cover every tensor once. A call of every rank."""
    planner, metadata = _SavePlanner(state), None

    def for_all(plans: list[SavePlan]) -> list[SavePlan]:
        nonlocal metadata
        plans, metadata = planner.create_global_plan(plans)
        return FileSystemWriter("").prepare_global_plan(plans)

    own = _together(group).reduce_scatter("plan", planner.create_local_plan, for_all)
    return Agreement(own, metadata)


def write(
    state: State,
    folder: Path,
    agreement: Agreement,
    group: dist.ProcessGroup,
    *,
    finish: Callable[[dict[str, str]], None],
) -> None:
    """Every rank's part of `state` into `folder`, synced; then `finish` on the first rank.

    A call of every rank; on all of them it raises what any ran into.
    """
    files = HashedFiles()
    # Copying ahead would wait for training's stream every ten megabytes.
    writer = FileSystemWriter(folder, single_file_per_rank=True, thread_count=1, per_thread_copy_ahead=0)
    writer.fs = files

    def write_own() -> tuple[list[WriteResult], dict[str, str]]:
        # The first rank made it, but another node of a shared disk may not see it yet.
        files.mkdir(folder)
        return writer.write_data(agreement.own, _SavePlanner(state)).wait(), files.digests

    def complete(written: list[tuple[list[WriteResult], dict[str, str]]]) -> None:
        assert agreement.metadata is not None
        writer.finish(dataclasses.replace(agreement.metadata), [results for results, _ in written])
        digests = {name: digest for _, theirs in written for name, digest in theirs.items()}
        finish(digests | files.digests)

    _together(group).all_reduce("write", write_own, complete)


def read(state: State, folder: Path) -> None:
    """Fills `state` from `folder`: tensors in place, other values as new ones. Each rank reads alone."""
    reader = FileSystemReader(folder)
    index = reader.read_metadata()
    reader.set_up_storage_reader(index, is_coordinator=True)
    plan = LoadPlan([])
    for name, value in state.items():
        known = index.state_dict_metadata[name]
        if isinstance(value, SharedTensor):
            assert isinstance(known, TensorStorageMetadata)
            plan.items += create_read_items_for_chunk_list(name, known, value.__create_chunk_list__())
        else:
            plan.items += create_default_local_load_plan({name: value}, index).items
    reader.read_data(plan, _LoadPlanner(state)).wait()


def names_in(folder: Path) -> set[str]:
    """Names of everything in the checkpoint at `folder`."""
    return set(FileSystemReader(folder).read_metadata().state_dict_metadata)


def _together(group: dist.ProcessGroup) -> _DistWrapper:
    """Collectives in which an error on one rank is raised on all, as CheckpointException."""
    return _DistWrapper(group, use_dist=True, coordinator_rank=0)


class _SavePlanner(DefaultSavePlanner):
    def __init__(self, state: State) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.set_up_planner(state)

    def lookup_object(self, index: MetadataIndex) -> object:
        return _find(self.state_dict, index)


class _LoadPlanner(DefaultLoadPlanner):
    def __init__(self, state: State) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        # In place: torch's set-up would replace what it does not know.
        self.state_dict = state

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        found = _find(self.state_dict, index)
        assert isinstance(found, Tensor)
        return found


def _find(state: Mapping[str, object], index: MetadataIndex) -> object:
    """As torch's planners do, which find boxes in subclasses of Tensor alone."""
    found = state[index.fqn]
    if isinstance(found, SharedTensor):
        assert index.offset is not None
        return found[index.offset]
    return found


class HashedFiles(FileSystem):
    """Where torch.distributed.checkpoint writes to."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        """SHA-256 by the names of the files that are written."""

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            if mode != "wb":
                yield stream
                return
            hashed = HashedStream(stream)
            try:
                yield hashed
            except Exception as error:
                # torch.save reports that its position is unexpected, and drops why.
                raise (hashed.refusal or error) from error
        self.digests[Path(path).name] = hashed.digest.hexdigest()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.digests[Path(new_path).name] = self.digests.pop(Path(path).name)


class HashedStream:
    """Written from begin to end; nothing in it is written twice."""

    def __init__(self, stream: io.IOBase) -> None:
        self._stream = stream
        self.refusal: OSError | None = None
        """Why the last write failed."""
        self.digest = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.digest.update(content)
        try:
            written: int = self._stream.write(content)
        except OSError as error:
            self.refusal = error
            raise
        return written

    def tell(self) -> int:
        return self._stream.tell()

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        self._stream.close()


class CheckpointError(AsyncrlError):
    """A checkpoint could not be written (the one before it is intact), or lacks what the run needs."""


class CheckpointWriter:
    """One save at a time. A call of every rank, but for `check`."""

    def __init__(self, *, in_background: bool = True) -> None:
        self._in_background = in_background
        self._group = ranks.side_group()
        self._agreement: Agreement | None = None
        self._host: dict[str, SharedTensor] = {}
        """Kept between saves: memory that was used before is filled several times as fast."""
        self._thread: threading.Thread | None = None
        self._failure: CheckpointError | DiskError | None = None

    def begin(self, state: State, part: Path, *, finish: Callable[[dict[str, str]], None]) -> None:
        """Copies `state` and returns; threads write it into `part`, then the first rank's calls `finish` with
        the digest of each file by name.

        Waits for the save before. Raises CheckpointError or DiskError when that one failed. In the foreground
        it copies nothing, returns when `finish` has, and raises what this save ran into.
        """
        self.wait()
        if self._agreement is None:
            self._agreement = agree(state, self._group)
        if not self._in_background:
            self._write(state, part, self._agreement, finish)
            return self._raise_failure()
        # Not a daemon: a save that was begun is finished and committed even when training ends in an error.
        arguments = (self._copy(state), part, self._agreement, finish)
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint writer")
        self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is being written. Raises CheckpointError or DiskError."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_failure()

    def check(self) -> None:
        """Raises CheckpointError or DiskError when a save has failed meanwhile; does not wait."""
        if self._thread is None or not self._thread.is_alive():
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _copy(self, state: State) -> State:
        copied: State = {}
        for name, value in state.items():
            if isinstance(value, SharedTensor):
                self._host[name] = copied[name] = value.host_copy(self._host.get(name))
            else:
                copied[name] = copy.deepcopy(value)
        if torch.cuda.is_available():
            # Until then the next step must not change what is copied.
            torch.cuda.current_stream().synchronize()
        return copied

    def _write(
        self, state: State, part: Path, agreement: Agreement, finish: Callable[[dict[str, str]], None]
    ) -> None:
        begin = time.perf_counter()
        try:
            write(state, part, agreement, self._group, finish=finish)
        # Whatever ended this thread ends the run: it is raised in training's own thread.
        except BaseException as error:
            kind = CheckpointError if find_refusal(error, part) is None else DiskError
            self._failure = kind(
                f"The checkpoint in {part} could not be written ({_cause(error)}). The one before it is "
                f"intact. Free up disk space, or lower trainer.keep_checkpoints, and run the "
                f"same command again: it resumes."
            )
            self._failure.__cause__ = error
            # What fills the disk must not stay there.
            shutil.rmtree(part, ignore_errors=True)
            log.error("%s", self._failure)
        else:
            name = part.name.removeprefix(".").removesuffix(".part")
            when = "during training" if self._in_background else "while training waited"
            log.info("%s written in %.2f s %s", name, time.perf_counter() - begin, when)


def _cause(error: BaseException) -> str:
    """In one line; torch wraps what ranks raised with their tracebacks."""
    if isinstance(error, CheckpointException):
        return "; ".join(f"rank {rank}: {_cause(inner)}" for rank, (inner, _) in error.failures.items())
    return f"{type(error).__name__}: {error}"
