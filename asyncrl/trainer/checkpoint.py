"""Checkpoints: all that makes the next step bitwise the same - weights, optimizer, schedule, RNG, version.

Megatron's dist_checkpointing, so that another layout can load them. A checkpoint is written beside its
place, synced, and renamed with its manifest inside: a folder under its own name is complete. On loading, the
manifest's digests tell a damaged one, which is skipped for the one before it.
"""

import hashlib
import json
import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint import FileSystemWriter, save

from asyncrl.trainer import ranks
from asyncrl.trainer.export import fresh_part, remove, replace, sync_tree
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.optimizer_state import sharded_optimizer_state
from asyncrl.types import PolicyVersion

MANIFEST = "checkpoint.json"
log = logging.getLogger(__name__)


class Checkpoints:
    """Owns RUN/checkpoints: step-<version> folders, the newest `num_kept` of them."""

    def __init__(self, folder: Path, *, num_kept: int) -> None:
        self.folder = folder
        self._num_kept = num_kept

    def path(self, version: PolicyVersion) -> Path:
        return self.folder / f"step-{version}"

    def save(self, learner: Learner, version: PolicyVersion) -> Path:
        """Makes version durable, then forgets the oldest. A call of every rank."""
        target = self.path(version)
        part = Path(ranks.broadcast(str(fresh_part(target)) if ranks.is_first() else None))
        dist_checkpointing.save(
            _state(learner, version, is_loading=False), part, InProcessSave("torch_dist", 1)
        )
        dist.barrier()
        if ranks.is_first():
            manifest = {"version": version, "files": {file.name: _digest(file) for file in part.iterdir()}}
            (part / MANIFEST).write_text(json.dumps(manifest))
            sync_tree(part)
            replace(part, target)
            self._forget_old()
        return target

    def load_newest(self, learner: Learner) -> PolicyVersion | None:
        """Restores the newest complete checkpoint; None when there is none. A call of every rank."""
        version = ranks.broadcast(self.newest() if ranks.is_first() else None)
        if version is None:
            return None
        begin = time.perf_counter()
        state = dist_checkpointing.load(_state(learner, 0, is_loading=True), self.path(version))
        assert state["version"] == version, f"{self.path(version)} says version {state['version']}"
        learner.model.load_state_dict(state["model"])
        learner.optimizer.load_state_dict(state["optimizer"])
        learner.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"])
        log.info("loaded %s in %.1f s", self.path(version), time.perf_counter() - begin)
        return version

    def newest(self) -> PolicyVersion | None:
        """The newest version whose checkpoint is complete; others are named in the log and skipped."""
        for version in reversed(self._versions()):
            if (fault := find_fault(self.path(version))) is None:
                return version
            log.warning("skipping checkpoint %s: %s", self.path(version), fault)
        return None

    def _versions(self) -> list[PolicyVersion]:
        names = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _forget_old(self) -> None:
        for version in self._versions()[: -self._num_kept]:
            remove(self.path(version))


def find_fault(checkpoint: Path) -> str | None:
    """Why `checkpoint` cannot be trusted, or None."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} cannot be read ({type(error).__name__}: {error})"
    for name, digest in files.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if _digest(file) != digest:
            return f"{name} is not what was written (its digest differs)"
    return None


class InProcessSave(SaveShardedStrategy):
    """Megatron's "torch_dist" format, written by this process.

    Its own strategy forks writers and starts a manager process for their results: 2.8 s at the first save
    and a hang when a writer dies. The files are the same, and Megatron's loader reads them.
    """

    def save(self, sharded_state_dict: dict, checkpoint_dir: Path) -> None:
        renamed, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        save(
            mcore_to_pyt_state_dict(renamed, False),
            storage_writer=FileSystemWriter(checkpoint_dir, single_file_per_rank=True, thread_count=1),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def check_backend_compatibility(self, loaded_version: int) -> None:
        pass

    def check_version_compatibility(self, loaded_version: int) -> None:
        pass


def _state(learner: Learner, version: PolicyVersion, *, is_loading: bool) -> dict:
    model = learner.model.sharded_state_dict()
    return {
        "model": model,
        "optimizer": sharded_optimizer_state(learner.optimizer, model, is_loading=is_loading),
        "schedule": learner.schedule.state_dict(),
        "rng": torch.get_rng_state(),
        "version": version,
    }


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
