"""Saving and loading checkpoints: everything that makes the next step the same to the bit.

That is weights, optimizer and loss scale (the critic's too), a reference that is refreshed, the weight of the
entropy bonus, the random state and the version, in the format of torch.distributed.checkpoint, which any
other layout can load (`training_state`). Under adapters (model.lora) the weights are the adapters', with a
digest of the base model that they belong to. The state is copied and written during training (`saving`):
under another name, synced, then renamed with its manifest inside. So a folder under its own name is complete.
On loading, a checkpoint whose digests differ from the manifest's is skipped for the one before it
(`asyncrl.run.checkpoints`).

The random state is the first rank's on every rank: there is no dropout, so nothing in a step draws from it.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypedDict, cast

import torch
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
from asyncrl.system.disk import writing
from asyncrl.system.folders import fresh_part, remove, replace, sync_tree
from asyncrl.trainer.checkpoints.checkpoint_files import State, names_in, read
from asyncrl.trainer.checkpoints.saving import CheckpointError, CheckpointWriter
from asyncrl.trainer.checkpoints.training_state import to_read, to_write
from asyncrl.trainer.network.reference import Reference
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.step.critic import CriticLearner
from asyncrl.trainer.step.entropy_target import EntropyState
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.loss_scale import LossScaling, loss_scaler
from asyncrl.trainer.step.optimizer_state import adam_steps, set_adam_steps

log = logging.getLogger(__name__)


COMMON = "common"
CRITIC = "critic."
"""Prefix of the names of the critic's tensors."""
REFERENCE = "reference."
"""Prefix of those of a reference that is refreshed: any other is the base model."""


class Counters(TypedDict):
    """Counters of one model's training, under its name in `_trained`."""

    adam_steps: int
    loss_scaling: LossScaling | None
    """None where it is not in float16."""


class Common(TypedDict):
    """State that is not a tensor; the first rank writes it."""

    version: PolicyVersion
    rng: Tensor
    counters: dict[str, Counters]
    entropy: EntropyState
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
        if learner.critic is not None and not any(
            name.startswith(CRITIC) for name in names_in(self.path(version))
        ):
            raise CheckpointError(
                f"{self.path(version)} holds no critic, which algorithm.advantage gae needs: the run was "
                f"begun with another advantage. Set algorithm.advantage back, or run_folder to a new folder."
            )
        common = _read(learner, self.path(version))
        if learner.model.lora is not None and common["base"] != learner.base_digest:
            raise InputError(
                f"{self.path(version)} holds an adapter of a base model with digest {common['base']}, but "
                f"that at model.path has {learner.base_digest}: the sum would be neither's. Set model.path "
                f"back to the model that the run was begun with, or run_folder to a new folder."
            )
        assert common["version"] == version, f"{self.path(version)} says version {common['version']}"
        for name, trained in _trained(learner):
            counters = common["counters"][name]
            set_adam_steps(trained.optimizer, counters["adam_steps"])
            if (scaler := loss_scaler(trained.optimizer)) is not None:
                assert counters["loss_scaling"] is not None, "a run keeps its model.dtype"
                scaler.restore(counters["loss_scaling"])
        learner.entropy.state = common["entropy"]
        torch.set_rng_state(common["rng"])
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
        """Versions of the checkpoints under their own names, ascending."""
        return saved_versions(self.folder)

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
            self.versions(),
            num_kept=self._num_kept,
            heldout=self.heldout,
            evaluated_every=self._best_of_every,
        ):
            remove(self.path(old))


def _written(learner: Learner, version: PolicyVersion) -> State:
    """The state that this rank writes."""
    if learner.critic is not None:
        learner.critic.gather_weights()
    state: State = {}
    for name, trained in _trained(learner):
        state |= to_write(trained.model, trained.optimizer, name)
    if (reference := _refreshed(learner)) is not None:
        state |= to_write(reference.model, None, REFERENCE)
    if ranks.is_first():
        counters = {name: _counters(trained) for name, trained in _trained(learner)}
        state[COMMON] = Common(
            version=version,
            rng=torch.get_rng_state(),
            counters=counters,
            entropy=learner.entropy.state,
            base=learner.base_digest,
        )
    return state


def _counters(trained: Learner | CriticLearner) -> Counters:
    scaler = loss_scaler(trained.optimizer)
    scaling = None if scaler is None else scaler.state()
    return Counters(adam_steps=adam_steps(trained.optimizer), loss_scaling=scaling)


def _read(learner: Learner, folder: Path) -> Common:
    """Fills the tensors of `learner`."""
    state: State = {COMMON: None}
    for name, trained in _trained(learner):
        state |= to_read(trained.model, trained.optimizer, name)
    if (reference := _refreshed(learner)) is not None:
        state |= to_read(reference.model, None, REFERENCE)
    read(state, folder)
    return cast(Common, state[COMMON])


def _refreshed(learner: Learner) -> Reference | None:
    """`model.lora` and a reference that is refreshed exclude each other."""
    reference = learner.reference
    is_refreshed = learner.algorithm.reference_refresh_steps > 0
    return reference if is_refreshed and isinstance(reference, Reference) else None


def _trained(learner: Learner) -> Iterator[tuple[str, Learner | CriticLearner]]:
    """Each model that is trained, and what its names begin with."""
    yield "", learner
    if learner.critic is not None:
        yield CRITIC, learner.critic
