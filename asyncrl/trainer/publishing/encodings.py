"""Forms of a version beside whole folders: deltas, and files in the trainer's memory.

A delta (serving.weight_encoding) does not send again what the servers have already. Each rank keeps its part
of the last version in the CPU's memory, compares the new one where that is, and writes what changed. The
whole folder is written from memory in the background, for servers that join, and for those that do not hold
the version before: they say so, and get it once it is written. The bytes of the last version are those that
were written, and thus compared on each server that serves.

Colocated servers (placement.colocated) wait for a version with nothing to do, on the trainer's machine. Each
rank copies its buckets into files of memory (memfd), in the format of safetensors; the publication's folder
has links to them and is complete at once. In the background the files are written to the disk, and each takes
the place of its link. When the trainer dies its memory is free: what was not written yet is published again.
"""

import asyncio
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import aiohttp
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.records import PolicyVersion
from asyncrl.serving.delta import (
    MAX_CHANGED_SHARE,
    Change,
    DeltaRule,
    Positions,
    Words,
    bytes_digest,
    encode,
    word_type,
    write_changes,
    write_manifest,
)
from asyncrl.serving.publication import DELTA, Load, Publication
from asyncrl.system.files import part_of, writing
from asyncrl.trainer.network.export import file_names
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.publishing.host_weights import Bucket, HostWeights, digests_of, num_bytes
from asyncrl.trainer.publishing.publish import PublicationFolders
from asyncrl.trainer.ranks import ranks

CHUNK_WORDS = 2**24
"""Words that are compared at once: positions take 8 bytes each where the weights are."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types that compare bits, by size in bytes."""


@dataclass(slots=True)
class _Part:
    """One rank's part of a version, compared with the last."""

    digests: dict[str, str] = field(default_factory=dict)
    """Digests of all tensors of the rank, as servers compare them."""
    changes: dict[str, Change] = field(default_factory=dict)
    num_changed: int = 0
    """Words; those of changes that were left out, too."""


class DeltaFolders:
    """An `Encoding`. Kept for the whole run; every rank makes the same calls."""

    def __init__(
        self,
        folders: PublicationFolders,
        *,
        is_auto: bool,
        is_compressed: bool,
        bucket_bytes: int | None = None,
    ) -> None:
        """`is_compressed`: where the way to the servers is slower than a compressor."""
        self.columns: dict[str, float] = {}
        self._folders = folders
        self._rule = DeltaRule(is_auto=is_auto)
        self._is_auto = is_auto
        self._is_compressed = is_compressed
        self._host = HostWeights(bucket_bytes=bucket_bytes)
        self._has_base = False
        """Whether the memory holds a version."""
        self._known: dict[str, str] = {}
        """Digests of the bytes in memory, empty where none was taken on the host."""
        self._digests: dict[str, str] = {}
        """Digests of the tensors of this rank, as servers compare them."""

    def write(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        return self._publish(version, model, is_whole=True)

    def prepare(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        return self._publish(version, model, is_whole=False)

    def _publish(self, version: PolicyVersion, model: Policy | PolicyModel, *, is_whole: bool) -> Publication:
        self._folders.wait()
        self._host.make_plan(model)
        num_words = sum(
            torch.Size(tensor.shape).numel()
            for bucket in self._host.plan
            for tensor in bucket.tensors
            if not bucket.is_fixed
        )
        is_whole = is_whole or not self._has_base
        most = MAX_CHANGED_SHARE * num_words if self._is_auto else num_words
        part = self._advance(model, most_changed=-1 if is_whole else most)
        found = ranks.gather((part.digests, part.num_changed))
        share = None if is_whole else sum(changed for _, changed in found) / max(1, num_words)
        is_delta = self._rule.sends_delta(share)
        digests = {name: digest for each, _ in found for name, digest in each.items()}
        path = self._folders.path(version)
        publication = Publication(version, path, digests, is_kept=self._rule.is_kept())
        with writing(f"Publication v{version}", path.parent):
            num_bytes = self._write(publication, part.changes, is_delta=is_delta)
        self.columns = {"publish_bytes": num_bytes} | ({} if share is None else {"changed_share": share})
        splits = self._folders.fixed.are_many(model)
        self._folders.begin(publication, self._host, splits=splits)
        if not is_delta:
            self._folders.wait()
        return publication

    def _advance(self, model: Policy | PolicyModel, *, most_changed: float) -> _Part:
        """Makes the memory the weights of `model`. More than `most_changed` words are counted alone."""
        part = _Part()
        for views, tensors in self._host.exported(model, with_fixed=not self._has_base):
            # Of what the model holds: a fault in the memory shows, too.
            self._digests |= (digests := digests_of(tensors))
            for name, tensor in tensors.items():
                if part.num_changed > most_changed:
                    # All is sent.
                    if most_changed >= 0:
                        part.num_changed += sum(
                            int((it != 0).sum()) for it in _differences(views[name], tensor)
                        )
                    views[name].copy_(tensor)
                    self._known[name] = "" if tensor.is_cuda else digests[name]
                    continue
                positions, changes = changed_words(views[name], tensor)
                part.num_changed += len(positions)
                if not len(positions):
                    continue
                base = self._known[name] or _host_digest(views[name])
                _bits(views[name]).numpy().view(changes.dtype)[positions] ^= changes
                digest = _host_digest(views[name]) if tensor.is_cuda else digests[name]
                self._known[name] = digest
                if part.num_changed <= most_changed:
                    data = encode(positions, changes, is_compressed=self._is_compressed)
                    part.changes[name] = Change(data, base, digest)
                else:
                    part.changes.clear()
        self._has_base = True
        part.digests = self._digests
        return part

    def _write(self, publication: Publication, changes: dict[str, Change], *, is_delta: bool) -> float:
        """Writes the delta, if it is one, and makes room for the whole folder; bytes that a server reads."""
        target = publication.folder.with_name(publication.folder.name + DELTA)
        if ranks.is_first():
            self._folders.fresh_part(publication.folder)
            if is_delta:
                self._folders.fresh_part(target)
        # The other ranks write into what the first has made.
        ranks.gather(None)
        if not is_delta:
            return float(self._host.num_bytes())
        size = write_changes(part_of(target) / f"changes-{dist.get_rank()}.safetensors", changes)
        found = ranks.gather((size, {name: (it.base, it.digest) for name, it in changes.items()}))
        if ranks.is_first():
            digests = {name: pair for _, each in found for name, pair in each.items()}
            write_manifest(part_of(target), digests, version=publication.version)
            part_of(target).rename(target)
        return float(sum(size for size, _ in found))


class LoadDeltas(Load):
    """Loads as another `Load` does, the whole folder once it is written."""

    def __init__(self, load: Load, *, wait: Callable[[], None]) -> None:
        self._load = load
        self._wait = wait

    async def prepare(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        if not publication.folder.name.endswith(DELTA):
            await asyncio.to_thread(self._wait)
        await self._load.prepare(session, url, publication)

    async def __call__(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        await self._load(session, url, publication)


def changed_words(old: Tensor, new: Tensor) -> tuple[Positions, Words]:
    """Positions [N] of the words of `new` whose bits differ from those of `old`, and the XOR [N] of both."""
    positions, changes = list[Tensor](), list[Tensor]()
    for number, difference in enumerate(_differences(old, new)):
        found = _nonzero(difference)
        changes.append(difference[found].cpu())
        positions.append(found.cpu() + number * CHUNK_WORDS)
    xor = torch.cat(changes).numpy()
    return torch.cat(positions).numpy(), xor.view(word_type(xor.dtype.itemsize))


def _nonzero(words: Tensor) -> Tensor:
    """Positions of the words that are not 0. Few are: 8 bytes are looked at at once where they fit."""
    in_block = 8 // words.itemsize
    if len(words) % in_block:
        return torch.nonzero(words).view(-1)
    blocks = torch.nonzero(words.view(torch.int64)).view(-1)
    block, word = torch.nonzero(words.view(-1, in_block)[blocks], as_tuple=True)
    return blocks[block] * in_block + word


def _differences(old: Tensor, new: Tensor) -> Iterator[Tensor]:
    """XOR of the bits in chunks, on the device of `new`."""
    for before, after in zip(_bits(old).split(CHUNK_WORDS), _bits(new).split(CHUNK_WORDS), strict=True):
        yield before.to(after.device, non_blocking=True) ^ after


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(INTEGERS[tensor.dtype.itemsize])


def _host_digest(tensor: Tensor) -> str:
    return bytes_digest(_bits(tensor).numpy().view(np.uint8))


_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class MemoryFolders:
    """An `Encoding`. Kept for the whole run; every rank makes the same calls."""

    def __init__(self, folders: PublicationFolders, *, bucket_bytes: int | None = None) -> None:
        self.columns: dict[str, float] = {}
        self._folders = folders
        self._host = HostWeights(bucket_bytes=bucket_bytes, allocate=self._allocate)
        self._paths: dict[Bucket, str] = {}
        """Own bucket -> the path under which every process of the user opens its memory."""
        self._digests: dict[str, str] = {}
        """Digests of the tensors of this rank."""
        self._holds_version = False
        """Whether the memory holds a version. The same on every rank, those without a bucket included."""

    def write(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        publication = self.prepare(version, model)
        self._folders.wait()
        return publication

    def prepare(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        self._folders.wait()
        self._host.make_plan(model)
        self._fill(model)
        digests = {name: digest for each in ranks.gather(self._digests) for name, digest in each.items()}
        publication = Publication(version, self._folders.path(version), digests)
        with writing(f"Publication v{version}", publication.folder.parent):
            if ranks.is_first():
                self._folders.fresh_part(publication.folder)
            ranks.gather(None)
            names = file_names(len(self._host.plan))
            for number, bucket in self._host.own().items():
                (part_of(publication.folder) / names[number]).symlink_to(self._paths[bucket])
            ranks.gather(None)
            if ranks.is_first():
                self._folders.complete(publication, self._host)
                self._folders.fresh_part(publication.folder)
            ranks.gather(None)
        self.columns = {"publish_bytes": float(self._host.num_bytes())}
        self._folders.begin(publication, self._host, is_complete=True)
        return publication

    def _fill(self, model: Policy | PolicyModel) -> None:
        """Makes the memory the weights of `model`."""
        for views, tensors in self._host.exported(model, with_fixed=not self._holds_version):
            for name, tensor in tensors.items():
                views[name].copy_(tensor, non_blocking=True)
            # Of what the model holds: a fault in the memory shows, too. It waits for the device.
            self._digests |= digests_of(tensors)
        self._holds_version = True
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _allocate(self, bucket: Bucket) -> Tensor:
        memory, path = shared_file(bucket)
        self._paths[bucket] = path
        return memory


def shared_file(bucket: Bucket) -> tuple[Tensor, str]:
    """The bytes of a bucket in a file of memory, which lives as long as this process, and its path."""
    header = _header(bucket)
    file = os.memfd_create("weights")
    os.ftruncate(file, len(header) + bucket.num_bytes)
    os.pwrite(file, header, 0)
    whole = torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)
    if torch.cuda.is_available():
        # Locked in memory, the device copies into it by itself and several times as fast.
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), whole.numel(), 0))
    return whole[len(header) :], f"/proc/{os.getpid()}/fd/{file}"


def _header(bucket: Bucket) -> bytes:
    """The beginning of a safetensors file: its length, and where each tensor lies in what follows."""
    tensors: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in bucket.tensors:
        begin, end = end, end + num_bytes(tensor)
        tensors[tensor.name] = {
            "dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end],
        }  # fmt: skip
    text = json.dumps(tensors).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
