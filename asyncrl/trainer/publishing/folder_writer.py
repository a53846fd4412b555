"""The folder of a version, written in the background for servers that join later.

Owns one write at a time. With several pipeline stages a thread of each rank writes the files of its own
buckets; they meet in a gloo group of their own before the first rank completes the folder. A write that fails
leaves nothing behind and ends the process: no restart helps against a full disk, and a server may wait.
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import safetensors.torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.system.files import writing
from asyncrl.trainer.ranks import ranks


class FolderWriter:
    """A call of every rank."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called in the writer's thread and should end the process."""
        self._failed = failed
        self._group = ranks.side_group() if dist.get_world_size() > 1 else None
        self._thread: threading.Thread | None = None

    def begin(
        self, part: Path, files: Mapping[str, Mapping[str, Tensor]], *, finish: Callable[[], None]
    ) -> None:
        """Returns at once; `files`, name -> tensors in the CPU's memory, must not change until `wait`.

        `part` exists. `finish` completes it on the first rank when the files of all ranks are there.
        """
        assert self._thread is None, "wait comes first"
        # Not a daemon: a folder that was begun is completed when training ends.
        self._thread = threading.Thread(target=self._write, args=(part, files, finish), name="folder writer")
        self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is being written."""
        if (thread := self._thread) is not None:
            thread.join()
            self._thread = None

    def _write(
        self, part: Path, files: Mapping[str, Mapping[str, Tensor]], finish: Callable[[], None]
    ) -> None:
        try:
            with writing(f"Publication {part.name.removeprefix('.').removesuffix('.part')}", part.parent):
                for name, tensors in files.items():
                    safetensors.torch.save_file(dict(tensors), part / name, metadata={"format": "pt"})
                if self._group is not None:
                    dist.barrier(group=self._group)
                if ranks.is_first():
                    finish()
        # Whatever ended this thread ends the process.
        except BaseException as error:
            # What fills the disk must not stay there.
            shutil.rmtree(part, ignore_errors=True)
            self._failed(error)
