"""Writing a checkpoint during training: the state is copied, then a thread of each rank writes the copy.

Owns one save at a time. Training waits for the copy alone, or for the save before if that is not done yet.
Where memory has no room for a copy, training waits for the whole write instead.
The threads of all ranks use a gloo group of their own, so their collectives never meet training's. A write
that fails on one rank fails on all, and is raised in training at the next call.
"""

import copy
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint import FileSystemWriter, save
from torch.distributed.checkpoint.api import CheckpointException

from asyncrl.disk import find_refusal
from asyncrl.errors import AsyncrlError, DiskError
from asyncrl.trainer import ranks
from asyncrl.trainer.optimizer_state import StateDict

log = logging.getLogger(__name__)


class CheckpointError(AsyncrlError):
    """A checkpoint could not be written (the one before it is intact), or lacks what the run needs."""


class CheckpointWriter:
    """One save at a time. A call of every rank, but for `check`."""

    def __init__(self, *, in_background: bool = True) -> None:
        self._in_background = in_background
        self._group = ranks.side_group()
        self._thread: threading.Thread | None = None
        self._failure: CheckpointError | DiskError | None = None
        self._is_validated = False

    def begin(self, state: Mapping[str, object], part: Path, *, finish: Callable[[], None]) -> None:
        """Copies `state` and returns; a thread writes it into `part`, then calls `finish` on every rank.

        Waits for the save before. Raises CheckpointError or DiskError when that one failed. In the foreground
        it copies nothing, returns when `finish` has, and raises what this save ran into.
        """
        self.wait()
        snapshot = Snapshot(copies=self._in_background)
        # Which rank holds what is the same at every save: checked once, it costs as much as a small copy.
        dist_checkpointing.save(state, part, snapshot, validate_access_integrity=not self._is_validated)
        self._is_validated = True
        if not self._in_background:
            self._write(snapshot, part, finish)
            return self._raise_failure()
        # Not a daemon: a save that was begun is finished and committed even when training ends in an error.
        self._thread = threading.Thread(
            target=self._write, args=(snapshot, part, finish), name="checkpoint writer"
        )
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

    def _write(self, snapshot: "Snapshot", part: Path, finish: Callable[[], None]) -> None:
        begin = time.perf_counter()
        try:
            snapshot.write(part, self._group)
            finish()
        # Whatever ended this thread ends the run: it is raised in training's own thread.
        except BaseException as error:
            kind = CheckpointError if find_refusal(error, part) is None else DiskError
            self._failure = kind(
                f"The checkpoint in {part} could not be written ({_cause(error)}). The one before it is "
                f"intact. Make room on the disk, or lower trainer.keep_checkpoints, and run the "
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


class Snapshot(SaveShardedStrategy):
    """Megatron's "torch_dist" format in two halves: `save` copies, `write` writes.

    Without `copies` the second half writes the state itself, which must not change meanwhile.

    Megatron's own asynchronous strategy forks writers and starts a manager process for their results: 2.8 s
    at the first save and a hang when a writer dies. The files are the same, and Megatron's loader reads them.
    """

    def __init__(self, *, copies: bool = True) -> None:
        super().__init__("torch_dist", 1)
        self._copies = copies
        self._copy: StateDict = {}

    def save(self, sharded_state_dict: StateDict, checkpoint_dir: Path) -> None:
        """Called by dist_checkpointing.save with what this rank holds; only main replicas are kept."""
        renamed, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        for shards in renamed.values():
            for shard in shards:
                if isinstance(shard, ShardedTensor):
                    shard.data = shard.data.detach().to("cpu", copy=self._copies)
                elif self._copies:
                    shard.data = copy.deepcopy(shard.data)
        self._copy = renamed

    def write(self, part: Path, group: dist.ProcessGroup) -> None:
        """Writes the copy, synced to disk, and frees it. A call of every rank's thread."""
        copied, self._copy = self._copy, {}
        save(
            mcore_to_pyt_state_dict(copied, False),
            storage_writer=FileSystemWriter(part, single_file_per_rank=True, thread_count=1),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
            process_group=group,
        )

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def check_backend_compatibility(self, loaded_version: int) -> None:
        pass

    def check_version_compatibility(self, loaded_version: int) -> None:
        pass
