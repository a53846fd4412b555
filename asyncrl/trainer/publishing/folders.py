"""The folders of published versions: written whole, or in the background from copies in memory.

With a manifest a folder is complete. The folders of the last two versions are kept.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import safetensors.torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.records import PolicyVersion
from asyncrl.serving.publication import CHANGED, DELTA, Publication
from asyncrl.system.files import fresh_part, part_of, remove, writing
from asyncrl.trainer.network.convert import export_weights, exported_tensors
from asyncrl.trainer.network.export import drain, file_names, write_index, write_weights
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.publishing.host_weights import Digests, HostWeights, num_bytes
from asyncrl.trainer.ranks import ranks

# Tensors that no step changes are written once. A version's folder holds what steps change, beside links to
# these. Another folder beside it holds the changed ones alone, for servers that have the rest
# (asyncrl/serving/publication.py).
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


# Owns one write at a time. With several pipeline stages a thread of each rank writes the files of its own
# buckets; they meet in a gloo group of their own before the first rank completes the folder. A failed write
# leaves nothing behind and ends the process: no restart helps against a full disk, and a server may wait.
class FolderWriter:
    """A call of every rank."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called in the writer's thread and should end the process."""
        self._failed = failed
        self._group = ranks.side_group() if dist.get_world_size() > 1 else None
        self._thread: threading.Thread | None = None

    def begin(
        self, part: Path, files: Mapping[str, Mapping[str, Tensor]], *, finish: Callable[[], None]
    ) -> None:
        """Returns at once; `files`, name -> tensors in the CPU's memory, must not change until `wait`.

        `part` exists. `finish` completes it on the first rank when the files of all ranks are there.
        """
        assert self._thread is None, "wait comes first"
        # Not a daemon: a folder that was begun is completed when training ends.
        self._thread = threading.Thread(target=self._write, args=(part, files, finish), name="folder writer")
        self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is being written."""
        if (thread := self._thread) is not None:
            thread.join()
            self._thread = None

    def _write(
        self, part: Path, files: Mapping[str, Mapping[str, Tensor]], finish: Callable[[], None]
    ) -> None:
        try:
            with writing(f"Publication {part.name.removeprefix('.').removesuffix('.part')}", part.parent):
                for name, tensors in files.items():
                    safetensors.torch.save_file(dict(tensors), part / name, metadata={"format": "pt"})
                if self._group is not None:
                    dist.barrier(group=self._group)
                if ranks.is_first():
                    finish()
        # Whatever ended this thread ends the process.
        except BaseException as error:
            # What fills the disk must not stay there.
            shutil.rmtree(part, ignore_errors=True)
            self._failed(error)


NUM_KEPT = 2
"""The current publication, and the one before it that a joining server may still be reading."""


class PublicationFolders:
    """Owns RUN/publications. Every rank has one and makes the same calls; the first completes folders."""

    def __init__(self, folder: Path, *, base: Path, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called in a thread when a folder could not be written in the background, and should end
        the process."""
        self._folder = folder
        self._config = base / "config.json"
        self._writer = FolderWriter(failed)
        self.fixed = FixedTensors(folder)
        self._previous: Path | None = None
        """The last folder that was written from memory: it has the files of what no step changes."""
        self.columns: dict[str, float] = {}
        """Columns of the last version, on the first rank."""

    def path(self, version: PolicyVersion) -> Path:
        return self._folder / f"v{version}"

    def write(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """Writes the folder of `version`, manifest last, and deletes the ones before the last two.

        Raises DiskError when there is no room.
        """
        self.wait()
        self._previous = None
        if self.fixed.are_many(model):
            return self._write_in_parts(version, model)
        weights = export_weights(model)
        if not ranks.is_first():
            drain(weights)
            return Publication(version, self.path(version), {})
        digests = Digests()
        with writing(f"Publication v{version}", self._folder):
            part = self.fresh_part(self.path(version))
            write_weights(part, digests.watch(weights))
            self.columns = {"publish_bytes": size_of(part)}
            publication = Publication(version, self.path(version), digests.by_name)
            self._complete(publication, part)
        return publication

    prepare = write

    def _write_in_parts(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """As `write`, with what no step changes written once."""
        target = self.path(version)
        if not ranks.is_first():
            self.fixed.write(model, None, None)
            return Publication(version, target, {})
        beside = target.with_name(target.name + CHANGED)
        with writing(f"Publication v{version}", self._folder):
            part, changed = self.fresh_part(target), self.fresh_part(beside)
            publication = Publication(version, target, self.fixed.write(model, part, changed))
            self.columns = {"publish_bytes": size_of(changed)}
            self._complete_beside(changed, beside)
            self._complete(publication, part)
        return publication

    def complete(self, publication: Publication, host: HostWeights) -> None:
        """Gives a part that has the files of `host` its index, its name and its manifest."""
        part, places = part_of(publication.folder), host.places()
        if len(set(places.values())) > 1:
            write_index(part, places, num_bytes=host.num_bytes())
        self._complete(publication, part)

    def begin(
        self,
        publication: Publication,
        host: HostWeights,
        *,
        splits: bool = False,
        is_complete: bool = False,
    ) -> None:
        """Writes the folder from `host`, which must not change until `wait`, in the background. The first
        rank has made its part. `splits`: the tensors that steps change also get a folder of their own.
        `is_complete`: the folder is there, and each file takes the place of another one."""
        target, names = publication.folder, file_names(len(host.plan))
        part, beside = part_of(target), target.with_name(target.name + CHANGED)
        changed = {name for name, bucket in zip(names, host.plan, strict=True) if not bucket.is_fixed}

        def complete() -> None:
            if is_complete:
                for written in part.iterdir():
                    os.replace(written, target / written.name)
                return part.rmdir()
            if splits:
                split = self.fresh_part(beside)
                for file in changed:
                    link(part / file, split / file)
                self._complete_beside(split, beside)
            self.complete(publication, host)

        files = host.files()
        if self._previous is not None and self._previous.is_dir():
            for name in files.keys() - changed:
                link(self._previous / name, part / name)
                del files[name]
        self._previous = target
        self._writer.begin(part, files, finish=complete)

    def wait(self) -> None:
        """Returns when no folder is being written."""
        self._writer.wait()

    def fresh_part(self, target: Path) -> Path:
        """An empty folder to write `target` in. A delta beside `target` is that of a trainer that is gone."""
        self._folder.mkdir(parents=True, exist_ok=True)
        remove(target.with_name(target.name + DELTA))
        return fresh_part(target)

    def _complete_beside(self, part: Path, target: Path) -> None:
        shutil.copyfile(self._config, part / "config.json")
        remove(target)
        part.rename(target)

    def _complete(self, publication: Publication, part: Path) -> None:
        """Gives a folder with all weights its name and its manifest, and deletes older ones."""
        self._complete_beside(part, publication.folder)
        publication.write_manifest()
        kept = {FOLDER}
        for version in range(publication.version - NUM_KEPT + 1, publication.version + 1):
            kept |= {self.path(version).name + suffix for suffix in ("", CHANGED, DELTA)}
        for path in self._folder.iterdir():
            if path.name not in kept:
                remove(path) if not path.name.startswith(".") else shutil.rmtree(path, ignore_errors=True)


def size_of(folder: Path) -> float:
    """Bytes of the weights in `folder`."""
    return float(sum(os.path.getsize(file) for file in folder.glob("*.safetensors")))
