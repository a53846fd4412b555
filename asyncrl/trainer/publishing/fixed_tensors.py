"""The tensors that no step changes, as under adapters: written once, and linked into each version's folder.

A version's own folder then holds what steps change, beside links to these. Another folder beside it holds the
changed ones alone, for servers that have the rest (asyncrl/serving/publication.py).
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from asyncrl.system.files import fresh_part, remove
from asyncrl.trainer.network.convert import export_weights, exported_tensors
from asyncrl.trainer.network.export import drain, write_weights
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.publishing.buckets import num_bytes
from asyncrl.trainer.publishing.digests import Digests
from asyncrl.trainer.ranks import ranks

FOLDER = "fixed"
LEAST_SHARE = 0.05
"""A share of all bytes. A server that joins reads the changed tensors, and then all: for less, such as frozen
routers alone, that costs more than each later version saves. `distributed` sends none of them twice, however
few."""


class FixedTensors:
    """Owns RUN/publications/fixed. Every rank has one and makes the same calls; the first writes."""

    def __init__(self, publications: Path) -> None:
        self._folder = publications / FOLDER
        self._is_written = False
        """Once in each start of the trainer."""
        self._are_many: bool | None = None
        self._digests: dict[str, str] = {}

    def are_many(self, model: Policy | PolicyModel) -> bool:
        """Whether they are worth a folder of their own. The same on every rank, for the whole run."""
        if self._are_many is None:
            tensors = exported_tensors(model)
            fixed = sum(num_bytes(tensor) for tensor in tensors if tensor.is_fixed)
            is_adapted = isinstance(model, Policy) and model.lora is not None
            self._are_many = is_adapted or fixed >= LEAST_SHARE * sum(map(num_bytes, tensors))
        return self._are_many

    def write(self, model: Policy | PolicyModel, part: Path | None, changed: Path | None) -> dict[str, str]:
        """Fills `part` with links to all tensors and `changed` with those that steps change; returns the
        digests of all. Both folders are None on ranks that do not write."""
        if not self._is_written:
            names = {tensor.name for tensor in exported_tensors(model) if tensor.is_fixed}
            self._write_fixed((name, tensor) for name, tensor in export_weights(model) if name in names)
            self._is_written = True
        digests, weights = Digests(), export_weights(model, with_fixed=False)
        if part is None or changed is None:
            drain(weights)
            return {}
        write_weights(changed, digests.watch(weights))
        for kind, folder in (("changed", changed), (FOLDER, self._folder)):
            for file in folder.glob("*.safetensors"):
                link(file, part / f"{kind}-{file.name}")
        return self._digests | digests.by_name

    def _write_fixed(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        if not ranks.is_first():
            return drain(weights)
        digests, part = Digests(), fresh_part(self._folder)
        write_weights(part, digests.watch(weights))
        remove(self._folder)
        part.rename(self._folder)
        self._digests = digests.by_name


def link(file: Path, target: Path) -> None:
    """Makes `target` the same file, or a copy where the disk has no hard links."""
    try:
        os.link(file, target)
    except OSError:
        # Some network disks have no hard links.
        shutil.copyfile(file, target)
