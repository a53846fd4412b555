"""The files of a checkpoint, in the format of torch.distributed.checkpoint: one of each rank, and an index.

Each rank writes what it alone holds and its share of what others hold too, and hashes it while it writes. A
reader takes what it holds from whatever files have it.

Tensors are written in rectangular parts, boxes. Boxes that cover a tensor can be read as any others, so a
checkpoint does not depend on the layout that wrote it. A rank's part is a rectangle in a model, but a range
of a flattened tensor in the distributed optimizer.
"""

import contextlib
import dataclasses
import hashlib
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.cuda._pin_memory_utils import pin_memory
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.utils import _DistWrapper

SMALLEST_PINNED_BYTES = 2**20
"""Locking a page takes longer than copying a small tensor."""


def empty_on_host(like: Tensor) -> Tensor:
    """An empty tensor, contiguous, to be kept as long as the process: locked memory is never unlocked.

    torch's own allocator of pinned memory rounds sizes up to powers of two.
    """
    host = torch.empty(like.shape, dtype=like.dtype)
    if like.is_cuda and host.nbytes >= SMALLEST_PINNED_BYTES:
        pin_memory(host.data_ptr(), host.nbytes)
    return host


@dataclass(frozen=True, slots=True)
class Box:
    offset: tuple[int, ...]
    """Position of its first number in the whole tensor."""
    data: Tensor
    """With the dimensions of the whole tensor; for reading, a view of where the numbers belong."""


class SharedTensor:
    """This rank's boxes of one tensor, as torch.distributed.checkpoint asks for them (`_Checkpointable`)."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = torch.Size(shape)
        self._boxes: dict[torch.Size, Box] = {}

    def add(self, box: Box) -> None:
        offset = torch.Size(box.offset)
        assert offset not in self._boxes, f"two boxes at {box.offset}"
        self._boxes[offset] = box

    def host_copy(self, kept: "SharedTensor | None") -> "SharedTensor":
        """A copy in host memory, in that of `kept`, an earlier copy, where there is one. One from a GPU is
        complete when the GPU's stream is."""
        target = SharedTensor(self.shape) if kept is None else kept
        for offset, box in self._boxes.items():
            if kept is None:
                target.add(Box(box.offset, empty_on_host(box.data)))
            target[offset].copy_(box.data, non_blocking=True)
        return target

    def __getitem__(self, offset: torch.Size) -> Tensor:
        return self._boxes[offset].data.detach()

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(name, offset),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(offset, box.data.shape),
                    # Of the numbers alone: whether they are pinned or trained is the reader's matter.
                    TensorProperties(dtype=box.data.dtype),
                    self.shape,
                ),
            )
            for offset, box in self._boxes.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offset, box.data.shape) for offset, box in self._boxes.items()]


def boxes_of_range(
    shape: Sequence[int], begin: int, end: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offset, shape) of the boxes that make up [`begin`, `end`) of a tensor of `shape`, flattened by rows.

    In that order: of a matrix the end of a row, whole rows, and the first part of a row.
    """
    if begin >= end:
        return
    if len(shape) <= 1:
        yield ((begin,), (end - begin,)) if shape else ((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-begin // row), end // row
    if begin < first * row:
        yield from _in_row(shape, first - 1, begin, min(end, first * row))
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    if first <= last and last * row < end:
        yield from _in_row(shape, last, last * row, end)


def _in_row(
    shape: Sequence[int], number: int, begin: int, end: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    before = number * math.prod(shape[1:])
    for offset, size in boxes_of_range(shape[1:], begin - before, end - before):
        yield (number, *offset), (1, *size)


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
