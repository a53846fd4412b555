"""How the bytes of a new version reach a paused server: through a folder, in the request, or by broadcast.

Folder and digests are the same for all three: whatever a server loaded is compared with the trainer's own
weights before it serves again. A server that joins later always reads the folder.
"""

import asyncio
import pickle
import socket
import uuid
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from asyncrl.errors import ServerError
from asyncrl.records import PolicyVersion
from asyncrl.serving import sglang
from asyncrl.serving.publication import Load, Publication, load_from_disk
from asyncrl.trainer.export import read_weights

BUCKET_BYTES = 256 * 2**20
"""Weights broadcast at once."""
REQUEST_BYTES = 64 * 2**20
"""Weights in one request, whose body is a third longer; both sides copy it many times: larger is slower."""
BROADCAST_SECONDS = 120.0
"""Longest wait for a server to join a group or take a bucket."""

Weights = dict[str, Tensor]


class Transport(Protocol):
    """One way of sending; kept for the whole run."""

    async def load(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        """Leaves the publication's weights in the paused server at `url`, labelled with the version.

        Raises ServerError."""
        ...


class Disk:
    """The server reads the publication's files by itself, as `load` tells it."""

    def __init__(self, load: Load) -> None:
        self._load = load

    async def load(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        await self._load(session, url, publication)


class InRequest:
    """Tensors travel by value inside the request: no shared disk, one copy per server."""

    async def load(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        await sglang.begin_weight_update(session, url)
        for bucket, version in _labelled(publication, max_bytes=min(REQUEST_BYTES, BUCKET_BYTES)):
            pickled = await asyncio.to_thread(_pickled, bucket)
            await sglang.update_weights_from_tensor(session, url, pickled, version)
        await sglang.end_weight_update(session, url)


class Broadcast:
    """torch.distributed: NCCL between GPUs, gloo between CPUs. One group per server, so that one that dies
    takes no other along."""

    def __init__(self, device: torch.device, *, host: str = "") -> None:
        self._device = device
        self._backend = "nccl" if device.type == "cuda" else "gloo"
        self._host = host or socket.gethostname()
        self._groups: dict[str, tuple[str, dist.ProcessGroup]] = {}

    async def load(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        try:
            name, group = await self._join(session, url)
            await sglang.begin_weight_update(session, url)
            for bucket, version in _labelled(publication, max_bytes=BUCKET_BYTES):
                await self._send(session, url, name, group, bucket, version)
            await sglang.end_weight_update(session, url)
        except (ServerError, RuntimeError) as error:
            # A new group is made next time: this one may be stuck in the middle of a broadcast.
            self._groups.pop(url, None)
            raise ServerError(f"{url}: sending weights failed: {error}") from error

    async def _join(self, session: aiohttp.ClientSession, url: str) -> tuple[str, dist.ProcessGroup]:
        if url in self._groups:
            return self._groups[url]
        # A server remembers the groups of trainers that have died.
        name = f"weights-{uuid.uuid4().hex}"
        host = "127.0.0.1" if urlsplit(url).hostname in ("127.0.0.1", "localhost") else self._host
        with socket.socket() as chosen:
            chosen.bind(("", 0))
            port = chosen.getsockname()[1]
        joining = asyncio.create_task(
            sglang.init_weights_update_group(
                session, url, host=host, port=port, name=name, backend=self._backend
            )
        )
        try:
            group = await asyncio.to_thread(_make_group, self._backend, host, port, name)
            await joining
        finally:
            joining.cancel()
        self._groups[url] = name, group
        return name, group

    async def _send(
        self,
        session: aiohttp.ClientSession,
        url: str,
        name: str,
        group: dist.ProcessGroup,
        bucket: Weights,
        version: PolicyVersion | None,
    ) -> None:
        receiving = asyncio.create_task(
            sglang.update_weights_from_distributed(
                session,
                url,
                group=name,
                names=list(bucket),
                dtypes=[str(tensor.dtype).removeprefix("torch.") for tensor in bucket.values()],
                shapes=[list(tensor.shape) for tensor in bucket.values()],
                version=version,
            )
        )
        try:
            await asyncio.to_thread(self._broadcast, bucket, group)
            await receiving
        finally:
            receiving.cancel()

    def _broadcast(self, bucket: Weights, group: dist.ProcessGroup) -> None:
        # The order of the names: the server posts its receives in that order.
        waiting = [
            dist.broadcast(tensor.to(self._device).contiguous(), group_src=0, group=group, async_op=True)
            for tensor in bucket.values()
        ]
        for work in waiting:
            work.wait()


def make_transport(name: str, files: Load = load_from_disk) -> Transport:
    """The transport of `serving.weight_transport`; `files` is for `disk`."""
    if name == "tensor":
        return InRequest()
    if name == "distributed":
        cuda = torch.cuda.is_available()
        return Broadcast(torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"))
    return Disk(files)


def buckets(weights: Iterable[tuple[str, Tensor]], *, max_bytes: int) -> Iterator[Weights]:
    """`weights` in their order, cut where a bucket would exceed `max_bytes`; a larger tensor goes alone."""
    bucket: Weights = {}
    num_bytes = 0
    for name, tensor in weights:
        if bucket and num_bytes + tensor.nbytes > max_bytes:
            yield bucket
            bucket, num_bytes = {}, 0
        bucket[name] = tensor
        num_bytes += tensor.nbytes
    if bucket:
        yield bucket


def _labelled(publication: Publication, *, max_bytes: int) -> Iterator[tuple[Weights, PolicyVersion | None]]:
    """Buckets and what labels each: the version with the last one, None before."""
    parts = buckets(read_weights(publication.folder), max_bytes=max_bytes)
    part = next(parts)
    for following in parts:
        yield part, None
        part = following
    yield part, publication.version


def _pickled(bucket: Weights) -> bytes:
    """By value: torch's own sharing of descriptors crashes a server that is not its child."""
    return pickle.dumps([(name, tensor.detach().cpu().contiguous()) for name, tensor in bucket.items()])


def _make_group(backend: str, host: str, port: int, name: str) -> dist.ProcessGroup:
    """Rank 0 of a group of two, apart from the trainer's own groups; the counterpart of SGLang 0.5.23's
    init_custom_process_group, whose store and prefix it must share."""
    seconds = timedelta(seconds=BROADCAST_SECONDS)
    store, _, _ = next(c10d.rendezvous(f"tcp://{host}:{port}", 0, 2, timeout=seconds))
    store.set_timeout(seconds)
    group, _ = c10d._new_process_group_helper(
        2,
        0,
        [],
        c10d.Backend(backend),
        c10d.PrefixStore(name, store),
        group_name=name,
        backend_options=None,
        timeout=seconds,
    )
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    return group
