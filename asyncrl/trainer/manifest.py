"""What makes a checkpoint folder complete: a manifest with a digest of each file. No torch."""

import hashlib
import json
import logging
from pathlib import Path

from asyncrl.types import PolicyVersion

MANIFEST = "checkpoint.json"
log = logging.getLogger(__name__)


def write_manifest(checkpoint: Path, version: PolicyVersion) -> None:
    """Last of all files of `checkpoint`."""
    manifest = {"version": version, "files": {file.name: _digest(file) for file in checkpoint.iterdir()}}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


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


def checkpoint_path(checkpoints: Path, version: PolicyVersion) -> Path:
    return checkpoints / f"step-{version}"


def saved_versions(checkpoints: Path) -> list[PolicyVersion]:
    """Of the checkpoints under their own names, ascending."""
    names = (path.name.removeprefix("step-") for path in checkpoints.glob("step-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def newest_version(checkpoints: Path, *, at_most: PolicyVersion | None = None) -> PolicyVersion | None:
    """The newest version whose checkpoint is complete; others are named in the log and skipped."""
    for version in reversed(saved_versions(checkpoints)):
        if at_most is not None and version > at_most:
            continue
        path = checkpoint_path(checkpoints, version)
        if (fault := find_fault(path)) is None:
            return version
        log.warning("skipping checkpoint %s: %s", path, fault)
    return None


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
