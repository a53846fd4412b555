"""Saving and loading checkpoints: everything that makes the next step the same to the bit.

That is weights, optimizer and schedule (the critic's too), the random state and the version, in the fully
reshardable format of Megatron's dist_checkpointing, so that another layout can load them. The state is copied
and written during training (`saving`): under another name, synced, then renamed with its manifest inside. So
a folder under its own name is complete. On loading, a checkpoint whose digests differ from the manifest's is
skipped for the one before it (`asyncrl.checkpoints`).

The random state is the first rank's on every rank: there is no dropout, so nothing in a step draws from it.
"""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NotRequired, TypedDict

import torch
from megatron.core import dist_checkpointing
from torch import Tensor

from asyncrl.checkpoints import (
    HeldOutAccuracies,
    checkpoint_path,
    find_fault,
    newest_version,
    saved_versions,
    to_forget,
    write_manifest,
)
from asyncrl.disk import writing
from asyncrl.records import PolicyVersion
from asyncrl.trainer import ranks
from asyncrl.trainer.export import fresh_part, remove, replace, sync_tree
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.optimizer_state import StateDict, sharded_optimizer_state
from asyncrl.trainer.saving import CheckpointError, CheckpointWriter

log = logging.getLogger(__name__)


class CheckpointState(TypedDict):
    """What a checkpoint holds, as Megatron describes it to write and gives it back."""

    model: StateDict
    optimizer: StateDict
    schedule: StateDict
    rng: Tensor
    version: PolicyVersion
    critic: NotRequired[StateDict]
    """Model, optimizer and schedule of its own."""


class Checkpoints:
    """Owns RUN/checkpoints: step-<version> folders, the newest `num_kept` of them.

    A save is written from a copy while training continues, without `saves_in_background` from the state
    itself while training waits. `best_of_every` n > 0 keeps the best on held-out tasks too, where every
    n-th version is evaluated.
    `committed(version, folder)` is called on the first rank, from the writer's thread, for each checkpoint
    that has become durable under its own name; an error of it is one of the save.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_kept: int,
        best_of_every: int = 0,
        saves_in_background: bool = True,
        committed: Callable[[PolicyVersion, Path], None] = lambda version, folder: None,
    ) -> None:
        self.folder = folder
        self.heldout = HeldOutAccuracies(folder)
        self._num_kept = num_kept
        self._best_of_every = best_of_every
        self._committed = committed
        self._writer = CheckpointWriter(in_background=saves_in_background)

    def path(self, version: PolicyVersion) -> Path:
        return checkpoint_path(self.folder, version)

    def begin(self, learner: Learner, version: PolicyVersion) -> None:
        """Copies the state, which becomes durable while training continues. A call of every rank.

        Without `saves_in_background` it is durable on return. Raises CheckpointError when this save or the
        one before failed, DiskError when one finds no room.
        """
        # Before the folder is touched: two saves of one version would share its part.
        self._writer.wait()
        target = self.path(version)
        with writing(f"The checkpoint of version {version}", self.folder):
            part = Path(ranks.broadcast(str(fresh_part(target)) if ranks.is_first() else None))
            self._writer.begin(
                _state(learner, version, is_loading=False),
                part,
                finish=lambda: self._complete(part, target, version) if ranks.is_first() else None,
            )

    def save(self, learner: Learner, version: PolicyVersion) -> Path:
        """`begin`, and waits until the checkpoint is durable and committed. Raises CheckpointError."""
        self.begin(learner, version)
        self.wait()
        return self.path(version)

    def wait(self) -> None:
        """Until nothing is being written. Raises CheckpointError."""
        self._writer.wait()

    def check(self) -> None:
        """Raises CheckpointError when a save has failed since; does not wait."""
        self._writer.check()

    def load_newest(self, learner: Learner) -> PolicyVersion:
        """Restores the newest complete checkpoint, else the base model, version 0. A call of every rank."""
        version: PolicyVersion = ranks.broadcast(self.newest() if ranks.is_first() else None)
        self.load(learner, version)
        return version

    def load(self, learner: Learner, version: PolicyVersion) -> None:
        """Restores the complete checkpoint of `version`; 0 is the base model. A call of every rank."""
        if version == 0:
            learner.load_base()
            return
        begin = time.perf_counter()
        if learner.critic is not None and not _holds_critic(self.path(version)):
            raise CheckpointError(
                f"{self.path(version)} holds no critic, which algorithm.advantage gae needs: the run was "
                f"begun with another advantage. Set algorithm.advantage back, or run_folder to a new folder."
            )
        state: CheckpointState = dist_checkpointing.load(
            _state(learner, 0, is_loading=True), self.path(version)
        )
        assert state["version"] == version, f"{self.path(version)} says version {state['version']}"
        learner.model.load_state_dict(state["model"])
        learner.optimizer.load_state_dict(state["optimizer"])
        learner.schedule.load_state_dict(state["schedule"])
        if learner.critic is not None:
            learner.critic.load_state(state["critic"])
        torch.set_rng_state(state["rng"])
        log.info("loaded %s in %.1f s", self.path(version), time.perf_counter() - begin)

    def newest(self) -> PolicyVersion:
        """The newest version whose checkpoint is complete, 0 without one; logs why others are skipped."""
        return newest_version(self.folder)

    def best(self) -> PolicyVersion | None:
        """The version of the best held-out accuracy among the complete checkpoints; None without any."""
        for version in self.heldout.best_first(self.versions()):
            if find_fault(self.path(version)) is None:
                return version
        return None

    def note_heldout(self, accuracies: Mapping[PolicyVersion, float]) -> None:
        """Remembers, over restarts too, what evaluations during training have found."""
        self.heldout.add(accuracies)

    def versions(self) -> list[PolicyVersion]:
        """Of the checkpoints under their own names, ascending."""
        return saved_versions(self.folder)

    def _complete(self, part: Path, target: Path, version: PolicyVersion) -> None:
        """On the first rank's thread, when all ranks have written: makes the checkpoint visible, commits."""
        write_manifest(part, version)
        sync_tree(part)
        replace(part, target)
        self._committed(version, target)
        for old in to_forget(
            self.versions(),
            num_kept=self._num_kept,
            heldout=self.heldout,
            evaluated_every=self._best_of_every,
        ):
            remove(self.path(old))


def _state(learner: Learner, version: PolicyVersion, *, is_loading: bool) -> CheckpointState:
    model = learner.model.sharded_state_dict()
    state: CheckpointState = {
        "model": model,
        "optimizer": sharded_optimizer_state(learner.optimizer, model, is_loading=is_loading),
        "schedule": learner.schedule.state_dict(),
        "rng": torch.get_rng_state(),
        "version": version,
    }
    if learner.critic is not None:
        state["critic"] = learner.critic.sharded_state(is_loading=is_loading)
    return state


def _holds_critic(folder: Path) -> bool:
    # Its schedule is no tensor, hence among what is read as a whole.
    return "critic" in dist_checkpointing.load_common_state_dict(str(folder))
