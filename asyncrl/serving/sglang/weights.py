"""Weight updates of a server, and the digests of what it loaded."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.records import PolicyVersion
from asyncrl.serving.sglang import http
from asyncrl.serving.sglang.http import CALL_SECONDS

PREPARE = "asyncrl_prepare"
"""Format of a folder that is brought to the server's host and not loaded (engine/hooks/weight_updates.py)."""
ALL_NAMES = [""]
"""Part of the name of every tensor."""


@dataclass(frozen=True, slots=True)
class GroupSeat:
    """Place of a server's ranks in a torch.distributed group of `size` ranks."""

    name: str
    host: str
    port: int
    first_rank: int
    """Rank of the server's first one."""
    size: int
    backend: str


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Bytes of tensors, one after the other in this order, that a group is sent at once."""

    group: str
    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[Sequence[int]]


async def update_weights_from_disk(
    session: aiohttp.ClientSession, url: str, folder: str, version: PolicyVersion
) -> None:
    """The server reads the safetensors in `folder`, which it must see at the same path, or its copy of what
    it prepared from there."""
    # The default is the format that the server started with; a quantising one cannot load twice.
    body = {"model_path": folder, "load_format": "auto", **_label(version)}
    await http.post(session, url, "/update_weights_from_disk", body)


async def prepare_weights(session: aiohttp.ClientSession, url: str, place: str) -> None:
    """The server, which has asyncrl's plugin, makes its copy the version at `place` and serves meanwhile.
    Raises RequestRefused for a delta that does not fit the copy."""
    body = {"model_path": place, "load_format": PREPARE}
    await http.post(session, url, "/update_weights_from_disk", body)


async def begin_weight_update(session: aiohttp.ClientSession, url: str) -> None:
    """Opens a session for weights sent in parts; one that a dead trainer left open is closed first."""
    try:
        await http.post(session, url, "/begin_weight_update", {})
    except ServerError:
        await end_weight_update(session, url)
        await http.post(session, url, "/begin_weight_update", {})


async def end_weight_update(session: aiohttp.ClientSession, url: str) -> None:
    await http.post(session, url, "/end_weight_update", {})


async def init_weights_update_group(session: aiohttp.ClientSession, url: str, seat: GroupSeat) -> None:
    """The ranks of the server join the group; returns once the group is formed."""
    body = {
        "master_address": seat.host,
        "master_port": seat.port,
        "rank_offset": seat.first_rank,
        "world_size": seat.size,
        "group_name": seat.name,
        "backend": seat.backend,
    }
    await http.post(session, url, "/init_weights_update_group", body)


async def destroy_weights_update_group(session: aiohttp.ClientSession, url: str, name: str) -> None:
    await http.post(
        session, url, "/destroy_weights_update_group", {"group_name": name}, timeout_seconds=CALL_SECONDS
    )


async def update_weights_from_distributed(
    session: aiohttp.ClientSession, url: str, sent: Broadcast, version: PolicyVersion | None
) -> None:
    """The server receives one broadcast. The last part has the version."""
    body = {
        "names": sent.names,
        "dtypes": sent.dtypes,
        "shapes": sent.shapes,
        "group_name": sent.group,
        "load_format": "flattened_bucket",
        **_label(version),
    }
    await http.post(session, url, "/update_weights_from_distributed", body)


async def weight_digests(
    session: aiohttp.ClientSession, url: str, *, timeout_seconds: float
) -> list[dict[str, str]]:
    """Digests per tensor rank: name of each tensor, as Hugging Face names it -> the digest of the bytes that
    its loader was last given (engine/hooks/loaded_weights.py)."""
    ranks: list[dict[str, str]] = await _checked(session, url, "checksums", [], timeout_seconds)
    return ranks


async def overall_digests(session: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> list[str]:
    """Per tensor rank the digest of its digests (`overall_digest`): a mixture has 18,000 tensors."""
    ranks: list[str] = await _checked(session, url, "per_gpu_checksum", ALL_NAMES, timeout_seconds)
    return ranks


async def _checked(
    session: aiohttp.ClientSession, url: str, field: str, left_out: list[str], timeout_seconds: float
) -> Any:
    """A field of each rank's report, without the digests of names that contain one of `left_out`."""
    check = {"action": "checksum", "skip_tensor_list": left_out}
    reply = await http.post(session, url, "/weights_checker", check, timeout_seconds=timeout_seconds)
    try:
        ranks = [rank[field] for rank in json.loads(reply)["ranks"]]
    except (ValueError, KeyError, TypeError):
        raise ServerError(
            f"{url}/weights_checker answered {reply[:200]!r}, expected ranks of checksums"
        ) from None
    return ranks


def _label(version: PolicyVersion | None) -> dict[str, object]:
    """Fields that go with each part of an update. A flush is refused while requests run; prefix caches are
    salted by version instead."""
    return {"flush_cache": False} | ({} if version is None else {"weight_version": str(version)})
