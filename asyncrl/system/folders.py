"""Folders that get their name when they are whole: written under another one, then renamed. No torch."""

import os
import shutil
from pathlib import Path


def part_of(target: Path) -> Path:
    """Where `target` is written until it is whole, next to it."""
    return target.with_name(f".{target.name}.part")


def fresh_part(target: Path) -> Path:
    """An empty folder next to `target` to write into; what a killed process left there is removed."""
    part = part_of(target)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def replace(part: Path, target: Path) -> None:
    """Renames the finished `part` to `target`; an older `target` is removed first."""
    remove(target)
    os.rename(part, target)
    _sync(target.parent)


def remove(folder: Path) -> None:
    """Deletes a folder; a kill in between leaves no half of it under its own name."""
    if folder.exists():
        trash = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(trash, ignore_errors=True)
        os.rename(folder, trash)
        shutil.rmtree(trash)


def sync_tree(folder: Path) -> None:
    """Makes the folder's files durable before its rename makes them visible."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
