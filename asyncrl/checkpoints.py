"""What makes a checkpoint folder complete: a manifest with a digest of each file. No torch."""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from asyncrl.records import PolicyVersion

MANIFEST = "checkpoint.json"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Newest:
    """What the trainer begins with, and what it would have begun with."""

    version: PolicyVersion | None
    """None: no checkpoint is complete, the base model."""
    faults: dict[PolicyVersion, str]
    """Why newer ones cannot be used, the newest first."""

    def remarks(self) -> list[str]:
        """A sentence per checkpoint that is not used; none when the newest is."""
        used = "the base model" if self.version is None else f"the one of step {self.version}"
        return [
            f"the checkpoint of step {version} is damaged: {fault}. Training goes back to {used}."
            for version, fault in self.faults.items()
        ]


def write_manifest(checkpoint: Path, version: PolicyVersion) -> None:
    """Last of all files of `checkpoint`."""
    manifest = {"version": version, "files": {file.name: _digest(file) for file in checkpoint.iterdir()}}
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
        if _digest(file) != digest:
            return f"{name} is not what was written (its digest differs)"
    return None


def checkpoint_path(checkpoints: Path, version: PolicyVersion) -> Path:
    return checkpoints / f"step-{version}"


def saved_versions(checkpoints: Path) -> list[PolicyVersion]:
    """Of the checkpoints under their own names, ascending."""
    names = (path.name.removeprefix("step-") for path in checkpoints.glob("step-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def newest_version(checkpoints: Path, *, at_most: PolicyVersion | None = None) -> PolicyVersion | None:
    """The newest version whose checkpoint is complete; others are named in the log and skipped."""
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
    return Newest(None, faults)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
