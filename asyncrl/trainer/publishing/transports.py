"""How the bytes of a folder reach a paused server: it reads the files, or they come in the request.

The digests are the same for both: whatever a server loaded is compared with the trainer's own weights before
it serves again. Without the folder: from_memory.py.
"""

import asyncio
import pickle
from collections.abc import Iterator
from typing import Protocol

import aiohttp

from asyncrl.records import PolicyVersion
from asyncrl.serving.publication import Load, Publication, load_from_disk
from asyncrl.serving.sglang import hooks, weights
from asyncrl.trainer.network.export import Weights, cut, read_weights

REQUEST_BYTES = 64 * 2**20
"""Weights in one request, whose body is a third longer; both sides copy it many times: larger is slower."""


class Transport(Protocol):
    """One way of sending; kept for the whole run."""

    async def load(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        """Leaves the publication's weights in the paused server at `url`, labeled with the version.

        Raises ServerError."""
        ...


class Disk:
    """The server reads the publication's files by itself, as `load` tells it."""

    def __init__(self, load: Load) -> None:
        self._load = load

    async def load(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        await self._load(session, url, publication)


class InRequest:
    """Tensors travel by value inside the request: no shared disk, one copy per rank of a server."""

    async def load(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        num_ranks = (await hooks.check_hooks(session, url)).num_ranks
        await weights.begin_weight_update(session, url)
        for bucket, version in _labelled(publication, max_bytes=REQUEST_BYTES):
            pickled = await asyncio.to_thread(_pickled, bucket)
            await weights.update_weights_from_tensor(session, url, pickled, version, num_ranks=num_ranks)
        await weights.end_weight_update(session, url)


def make_transport(name: str, files: Load = load_from_disk) -> Transport:
    """The transport of `serving.weight_transport` that reads the folder; `files` is for `disk`."""
    return InRequest() if name == "tensor" else Disk(files)


def _labelled(publication: Publication, *, max_bytes: int) -> Iterator[tuple[Weights, PolicyVersion | None]]:
    """Buckets and what labels each: the version with the last one, None before."""
    parts = cut(read_weights(publication.folder), max_bytes=max_bytes)
    part = next(parts)
    for following in parts:
        yield part, None
        part = following
    yield part, publication.version


def _pickled(bucket: Weights) -> bytes:
    """By value: torch's own sharing of descriptors crashes a server that is not its child."""
    return pickle.dumps([(name, tensor.detach().cpu().contiguous()) for name, tensor in bucket.items()])
