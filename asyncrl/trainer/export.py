"""Weights on disk as a Hugging Face folder: what SGLang loads at a publish and transformers at the end.

Owns the reading and writing of safetensors. Every rank calls, to gather the weights; the first writes.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from asyncrl.trainer import ranks
from asyncrl.trainer.convert import export_weights
from asyncrl.trainer.folder import other_files, weight_files
from asyncrl.trainer.model import PolicyModel

WEIGHTS = "model.safetensors"


def open_weights(folder: Path) -> Callable[[str], Tensor]:
    """A function from tensor name to tensor, over all safetensors files of `folder`; reads on demand."""
    files = [safetensors.safe_open(file, framework="pt") for file in weight_files(folder)]
    places = {name: file for file in files for name in file.keys()}
    return lambda name: places[name].get_tensor(name)


def write_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    safetensors.torch.save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def export_model(model: PolicyModel, *, base: Path, target: Path) -> None:
    """Writes `target`: the model's weights with configuration and tokenizer of `base`."""
    weights = dict(export_weights(model))
    if not ranks.is_first():
        return
    part = fresh_part(target)
    write_weights(part, weights)
    for file in other_files(base):
        shutil.copyfile(file, part / file.name)
    sync_tree(part)
    replace(part, target)


def fresh_part(target: Path) -> Path:
    """An empty folder beside `target` to write into; what a killed process left there is removed."""
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def replace(part: Path, target: Path) -> None:
    """Renames the finished `part` to `target`; an older `target` goes away first."""
    remove(target)
    os.rename(part, target)
    _sync(target.parent)


def remove(folder: Path) -> None:
    """Deletes a folder such that a kill in between leaves no half of it under its own name."""
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
