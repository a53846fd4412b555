"""A version's tensors in the CPU's memory, in the buckets that are sent and written, with their digests; the
thread that writes them, and the tensors that no step changes, which are written once."""

import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.serving.tensor_digest import PendingDigests
from asyncrl.system.files import fresh_part, remove, writing
from asyncrl.trainer.network.convert import ExportedTensor, export_stages, export_weights, exported_tensors
from asyncrl.trainer.network.export import drain, file_names, write_weights
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.network.model import device as find_device
from asyncrl.trainer.ranks import ranks


# Every rank plans the same buckets, stage by stage, before any of them is packed. Tensors that no step
# changes are in separate buckets. The layout is SGLang's `flattened_bucket`: the bytes of each tensor in
# order.
@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors of one pipeline stage that are sent at once."""

    tensors: tuple[ExportedTensor, ...]

    @property
    def stage(self) -> int:
        return self.tensors[0].stage

    @property
    def sender(self) -> int:
        """The rank that packs and sends it."""
        return self.tensors[0].sender

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(tensor) for tensor in self.tensors)

    @property
    def is_fixed(self) -> bool:
        """Whether no step changes its tensors."""
        return self.tensors[0].is_fixed

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Name -> its part of `flat` [num_bytes], with its own type and shape."""
        parts = flat[: self.num_bytes].split([num_bytes(tensor) for tensor in self.tensors])
        return {
            tensor.name: part.view(tensor.dtype).view(tensor.shape)
            for tensor, part in zip(self.tensors, parts, strict=True)
        }


def num_bytes(tensor: ExportedTensor) -> int:
    return torch.Size(tensor.shape).numel() * tensor.dtype.itemsize


def plan_buckets(tensors: Iterable[ExportedTensor], *, max_bytes: int) -> list[Bucket]:
    """`tensors` in their order, cut where a bucket would exceed `max_bytes`, where a stage or what steps
    change ends, and where a tensor would not be aligned to its type. A larger tensor goes alone."""
    buckets: list[list[ExportedTensor]] = []
    size = 0
    for tensor in tensors:
        is_full = size + num_bytes(tensor) > max_bytes or size % tensor.dtype.itemsize
        kind = tensor.stage, tensor.is_fixed
        if not buckets or is_full or kind != (buckets[-1][0].stage, buckets[-1][0].is_fixed):
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += num_bytes(tensor)
    return [Bucket(tuple(bucket)) for bucket in buckets]


class Digests:
    """Hugging Face name -> digest, of the tensors that passed."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._pending = PendingDigests()

    @property
    def by_name(self) -> dict[str, str]:
        """Waits for the device."""
        return self._pending.read()

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields `weights` and digests them."""
        for name, tensor in weights:
            self.add(name, tensor)
            yield name, tensor

    def add(self, name: str, tensor: Tensor) -> None:
        assert name not in self._names, f"{name} came twice"
        self._names.add(name)
        self._pending.add(name, tensor)


def digests_of(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Digests of tensors that are all there, by name. Waits for the device once."""
    digests = Digests()
    for name, tensor in weights.items():
        digests.add(name, tensor)
    return digests.by_name


BUCKET_BYTES = {"cuda": 2**30, "cpu": 2**26}
"""Default of serving.weight_bucket_bytes, by device type."""


class HostWeights:
    """Kept for the whole run."""

    def __init__(
        self, *, bucket_bytes: int | None, allocate: Callable[[Bucket], Tensor] | None = None
    ) -> None:
        """`allocate`: the bytes of an own bucket, undefined. Default: pinned memory where there is a GPU."""
        self._bucket_bytes = bucket_bytes or BUCKET_BYTES[find_device().type]
        self.plan: list[Bucket] = []
        """The same on every rank; a bucket's number is its place."""
        self._allocate = allocate or _pinned
        self._copies: dict[int, Tensor] = {}
        """Number of an own bucket -> its bytes."""

    def make_plan(self, model: Policy | PolicyModel) -> None:
        """The first call decides. A call of every rank."""
        if not self.plan:
            self.plan = plan_buckets(exported_tensors(model), max_bytes=self._bucket_bytes)

    def own(self) -> dict[int, Bucket]:
        rank = dist.get_rank()
        return {number: bucket for number, bucket in enumerate(self.plan) if bucket.sender == rank}

    def copy(self, number: int) -> Tensor:
        """The bytes of an own bucket, undefined until they are written."""
        if number not in self._copies:
            self._copies[number] = self._allocate(self.plan[number])
        return self._copies[number]

    def exported(
        self, model: Policy | PolicyModel, *, with_fixed: bool
    ) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """Each own bucket, those that no step changes only `with_fixed`: its tensors in the memory, by name,
        and what the model holds of them. Other ranks need this one to the end, for its parts of theirs."""
        weights = export_stages(model, with_fixed=with_fixed)
        for number, bucket in self.own().items():
            if with_fixed or not bucket.is_fixed:
                yield bucket.views(self.copy(number)), dict(itertools.islice(weights, len(bucket.tensors)))
        drain(weights)

    def files(self) -> dict[str, dict[str, Tensor]]:
        """File name -> tensors, of this rank."""
        names = file_names(len(self.plan))
        return {names[number]: self.plan[number].views(copy) for number, copy in self._copies.items()}

    def places(self) -> dict[str, str]:
        """Tensor -> its file, of all ranks."""
        names = file_names(len(self.plan))
        return {t.name: name for name, bucket in zip(names, self.plan, strict=True) for t in bucket.tensors}

    def num_bytes(self) -> int:
        """Total over all ranks."""
        return sum(bucket.num_bytes for bucket in self.plan)


def _pinned(bucket: Bucket) -> Tensor:
    return torch.empty(bucket.num_bytes, dtype=torch.uint8, pin_memory=find_device().type != "cpu")


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


# A version's folder holds what steps change, beside links to tensors that no step changes. Another folder
# beside it holds the changed ones alone, for servers that have the rest (asyncrl/serving/publication.py).
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
