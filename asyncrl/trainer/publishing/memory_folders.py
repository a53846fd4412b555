"""Publications whose files are the trainer's memory until they are on disk (placement.colocated).

Colocated servers wait for a version with nothing to do, on the trainer's machine. Each rank copies its
buckets into files of memory (memfd), in the format of safetensors; the publication's folder has links to them
and is complete at once. In the background the files are written to the disk, and each takes the place of its
link. When the trainer dies its memory is free: what was not written yet is published again.
"""

import json
import mmap
import os
import struct

import torch
from torch import Tensor

from asyncrl.records import PolicyVersion
from asyncrl.serving.publication import Publication
from asyncrl.system.files import part_of, writing
from asyncrl.trainer.network.export import file_names
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.publishing.folders import PublicationFolders
from asyncrl.trainer.publishing.host_weights import Bucket, HostWeights, digests_of, num_bytes
from asyncrl.trainer.ranks import ranks

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
