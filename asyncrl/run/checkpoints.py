"""The checkpoints of a run, RUN/checkpoints/step-<version>: which exist, which are complete, which stay.

A checkpoint is complete when its manifest is there and every file has the digest that the manifest names.
The newest stay, and with trainer.keep_best the one of the best held-out accuracy. An evaluation is known some
steps after its version was made: until a later one is known, a checkpoint that may still prove the best stays
too. No torch.
"""

import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from asyncrl.records import PolicyVersion
from asyncrl.system.files import sha256_of, write_whole
from asyncrl.system.places import CHECKPOINTS

MANIFEST = "checkpoint.json"
HELDOUT = "heldout.json"
EXPORT = "hf"
"""Folder of a checkpoint that transformers loads."""
log = logging.getLogger(__name__)


class Manifest(TypedDict):
    """Contents of MANIFEST."""

    version: PolicyVersion
    files: dict[str, str]
    """Name -> SHA-256."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The version that the trainer begins with, and the newer ones that it cannot use."""

    version: PolicyVersion
    """0: no checkpoint is complete, so the base model."""
    faults: dict[PolicyVersion, str]
    """Why newer ones cannot be used, the newest first."""

    def remarks(self) -> list[str]:
        """A sentence per checkpoint that is not used; none when the newest is."""
        used = f"the one of step {self.version}" if self.version else "the base model"
        return [
            f"the checkpoint of step {version} is damaged: {fault}. Training goes back to {used}."
            for version, fault in self.faults.items()
        ]


def write_manifest(checkpoint: Path, version: PolicyVersion, digests: Mapping[str, str]) -> None:
    """The last file to be written into `checkpoint`; `digests` of the others by their names."""
    manifest: Manifest = {"version": version, "files": dict(digests)}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


def find_fault(checkpoint: Path) -> str | None:
    """Why `checkpoint` cannot be trusted, or None."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        files, version = dict(manifest["files"]), manifest["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} cannot be read ({type(error).__name__}: {error})"
    if checkpoint.name != checkpoint_path(checkpoint.parent, version).name:
        return f"its {MANIFEST} says that it is the one of step {version}"
    for name, digest in files.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if sha256_of(file) != digest:
            return f"{name} is not what was written (its digest differs)"
    return None


def checkpoint_path(checkpoints: Path, version: PolicyVersion) -> Path:
    return checkpoints / f"step-{version}"


def export_path(run: Path, version: PolicyVersion) -> Path:
    """The Hugging Face folder of a version, which may not be there."""
    return checkpoint_path(run / CHECKPOINTS, version) / EXPORT


def exported_versions(run: Path) -> list[PolicyVersion]:
    """Versions of `run` that have their Hugging Face folder, ascending."""
    saved = saved_versions(run / CHECKPOINTS)
    return [version for version in saved if export_path(run, version).is_dir()]


def saved_versions(checkpoints: Path) -> list[PolicyVersion]:
    """Versions of the checkpoints under their own names, ascending."""
    names = (path.name.removeprefix("step-") for path in checkpoints.glob("step-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def newest_version(checkpoints: Path, *, at_most: PolicyVersion | None = None) -> PolicyVersion:
    """The version that `find_newest` finds; logs why newer checkpoints are skipped."""
    newest = find_newest(checkpoints, at_most=at_most)
    for version, fault in newest.faults.items():
        log.warning("skipping checkpoint %s: %s", checkpoint_path(checkpoints, version), fault)
    return newest.version


def find_newest(checkpoints: Path, *, at_most: PolicyVersion | None = None) -> Newest:
    """The newest complete checkpoint; reads every file of those that it looks at."""
    faults: dict[PolicyVersion, str] = {}
    for version in reversed(saved_versions(checkpoints)):
        if at_most is not None and version > at_most:
            continue
        fault = find_fault(checkpoint_path(checkpoints, version))
        if fault is None:
            return Newest(version, faults)
        faults[version] = fault
    return Newest(0, faults)


class HeldOutAccuracies:
    """Version -> greedy held-out accuracy, in RUN/checkpoints/heldout.json. Safe for two threads.

    An accuracy counts for the version at which its evaluation began; servers that were updated meanwhile
    answered part of the tasks with the versions just after it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / HELDOUT
        self._lock = threading.Lock()
        self._accuracies: dict[PolicyVersion, float] = {}
        if self._file.is_file():
            self._accuracies = {int(version): x for version, x in json.loads(self._file.read_text()).items()}

    def add(self, accuracies: Mapping[PolicyVersion, float]) -> None:
        """Writes the file when there is anything new."""
        with self._lock:
            if accuracies.items() <= self._accuracies.items():
                return
            self._accuracies = {**self._accuracies, **accuracies}
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(self._accuracies))

    def accuracy(self, version: PolicyVersion) -> float | None:
        with self._lock:
            return self._accuracies.get(version)

    def best_first(self, versions: Iterable[PolicyVersion]) -> list[PolicyVersion]:
        """The evaluated ones of `versions`, best first; of equals the newer first."""
        with self._lock:
            known = [version for version in versions if version in self._accuracies]
            return sorted(known, key=lambda version: (-self._accuracies[version], -version))

    def newest(self) -> PolicyVersion:
        """The newest version that was evaluated, 0 without any."""
        with self._lock:
            return max(self._accuracies, default=0)


def to_forget(
    versions: Sequence[PolicyVersion], *, num_kept: int, heldout: HeldOutAccuracies, evaluated_every: int
) -> list[PolicyVersion]:
    """The ones of `versions` (ascending) to delete.

    With `evaluated_every` the best stays, and so do those whose evaluation may still be under way.
    """
    old = list(versions[:-num_kept])
    if not evaluated_every:
        return old
    best, newest = heldout.best_first(versions)[:1], heldout.newest()
    return [v for v in old if v not in best and (v % evaluated_every or v <= newest)]
