"""Saving and loading checkpoints: everything that makes the next step the same to the bit.

That is weights, optimizer and loss scale, what parts add (`StepPart.saved`, `StepPart.state`), the random
state and the version, in the format of torch.distributed.checkpoint, which any other layout can load
(`training_state`). Under adapters (model.lora) the weights are the adapters', with a digest of the base model
that they belong to. The state is copied and written during training: under another name, synced,
then renamed with its manifest inside. So a folder under its own name is complete.
On loading, a checkpoint whose digests differ from the manifest's is skipped for the one before it
(`asyncrl.run.checkpoints`).

The random state is the first rank's on every rank: there is no dropout, so nothing in a step draws from it.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import torch
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor

from asyncrl.errors import InputError
from asyncrl.records import PolicyVersion
from asyncrl.run.checkpoints import (
    HeldOutAccuracies,
    checkpoint_path,
    find_fault,
    newest_version,
    saved_versions,
    to_forget,
    write_manifest,
)
from asyncrl.system.files import fresh_part, remove, replace, sync_tree, writing
from asyncrl.trainer.checkpoints.checkpoint_files import (
    CheckpointError,
    CheckpointWriter,
    State,
    names_in,
    read,
)
from asyncrl.trainer.checkpoints.training_state import to_read, to_write
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.optimizer_state import LossScaling, adam_steps, loss_scaler, set_adam_steps
from asyncrl.trainer.step.part import Saved

log = logging.getLogger(__name__)


COMMON = "common"


class Counters(TypedDict):
    """Counters of one model's training, under the prefix of its tensors."""

    adam_steps: int
    loss_scaling: LossScaling | None
    """None where it is not in float16."""


class Common(TypedDict):
    """State that is not a tensor; the first rank writes it, together with the state of parts."""

    version: PolicyVersion
    rng: Tensor
    counters: dict[str, Counters]
    base: str | None
    """Digest of the base model that adapters belong to."""


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
        """Accuracies that evaluations during training have found, over restarts too."""
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
                _written(learner, version),
                part,
                finish=lambda digests: self._complete(part, target, version, digests),
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
        if learner.model.lora is not None:
            learner.load_base()
        names = names_in(self.path(version))
        for saved in _models(learner):
            if not any(name.startswith(saved.prefix) for name in names):
                raise CheckpointError(f"{self.path(version)} holds {saved.missing}")
        common = _read(learner, self.path(version))
        if learner.model.lora is not None and common["base"] != learner.base_digest:
            raise InputError(
                f"{self.path(version)} holds an adapter of a base model with digest {common['base']}, but "
                f"that at model.path has {learner.base_digest}: the sum would be neither's. Set model.path "
                f"back to the model that the run was begun with, or run_folder to a new folder."
            )
        assert common["version"] == version, f"{self.path(version)} says version {common['version']}"
        for saved in _models(learner):
            if saved.optimizer is None:
                continue
            counters = common["counters"][saved.prefix]
            set_adam_steps(saved.optimizer, counters["adam_steps"])
            if (scaler := loss_scaler(saved.optimizer)) is not None:
                assert counters["loss_scaling"] is not None, "a run keeps its model.dtype"
                scaler.restore(counters["loss_scaling"])
        for part in learner.parts:
            part.restore(common)
        torch.set_rng_state(common["rng"])
        log.info("loaded %s in %.1f s", self.path(version), time.perf_counter() - begin)

    def newest(self) -> PolicyVersion:
        """The newest version whose checkpoint is complete, 0 without one; logs why others are skipped."""
        return newest_version(self.folder)

    def best(self) -> PolicyVersion | None:
        """The version of the best held-out accuracy among the complete checkpoints; None without any."""
        for version in self.heldout.best_first(saved_versions(self.folder)):
            if find_fault(self.path(version)) is None:
                return version
        return None

    def _complete(self, part: Path, target: Path, version: PolicyVersion, digests: dict[str, str]) -> None:
        """On the first rank's thread, when all ranks have written: makes the checkpoint visible, commits."""
        if missing := [name for name in digests if not (part / name).is_file()]:
            raise CheckpointError(
                f"{', '.join(missing)} are not on this rank's disk. All trainer ranks write into run_folder: "
                f"set it to a folder of a disk that they share."
            )
        write_manifest(part, version, digests)
        sync_tree(part)
        replace(part, target)
        self._committed(version, target)
        for old in to_forget(
            saved_versions(self.folder),
            num_kept=self._num_kept,
            heldout=self.heldout,
            evaluated_every=self._best_of_every,
        ):
            remove(self.path(old))


def _written(learner: Learner, version: PolicyVersion) -> State:
    """The state that this rank writes."""
    for part in learner.parts:
        part.before_saving()
    state: State = {}
    for saved in _models(learner):
        state |= to_write(saved.model, saved.optimizer, saved.prefix)
    if ranks.is_first():
        trained = {saved.prefix: saved.optimizer for saved in _models(learner)}
        common = Common(
            version=version,
            rng=torch.get_rng_state(),
            counters={name: _counters(each) for name, each in trained.items() if each is not None},
            base=learner.base_digest,
        )
        of_parts: dict[str, Any] = {}
        for part in learner.parts:
            of_parts |= part.state()
        state[COMMON] = of_parts | common
    return state


def _counters(optimizer: MegatronOptimizer) -> Counters:
    scaler = loss_scaler(optimizer)
    scaling = None if scaler is None else scaler.state()
    return Counters(adam_steps=adam_steps(optimizer), loss_scaling=scaling)


def _read(learner: Learner, folder: Path) -> dict[str, Any]:
    """Fills the tensors of `learner`; returns what is not a tensor: `Common`, and the state of parts."""
    state: State = {COMMON: None}
    for saved in _models(learner):
        state |= to_read(saved.model, saved.optimizer, saved.prefix)
    read(state, folder)
    common = state[COMMON]
    assert isinstance(common, dict)
    return common


def _models(learner: Learner) -> list[Saved]:
    """The policy, whose names have no prefix, and the models of parts."""
    others = [saved for part in learner.parts for saved in part.saved()]
    return [Saved("", learner.model, learner.optimizer, "no policy."), *others]
