"""Writing a checkpoint during training: the state is copied, then a thread of each rank writes the copy.

Owns one save at a time. Training waits for the copy alone, or for the save before if that is not done yet.
Where memory has no room for a copy, training waits for the whole write instead. Each rank writes what was
agreed at the first save.
The threads of all ranks use a gloo group of their own, so their collectives never meet training's. A write
that fails on one rank fails on all, and is raised in training at the next call.
"""

import copy
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException

from asyncrl.errors import AsyncrlError, DiskError
from asyncrl.system.files import find_refusal
from asyncrl.trainer.checkpoints.boxes import SharedTensor
from asyncrl.trainer.checkpoints.checkpoint_files import Agreement, State, agree, write
from asyncrl.trainer.ranks import ranks

log = logging.getLogger(__name__)


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
