"""A published policy version: a folder of weights with digests, and how one server comes to serve it.

The trainer writes publications and installs them after each step; the controller installs the latest one on
a server that joins later. A server serves only what was compared with the trainer's own digests. No torch.
"""

import asyncio
import io
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.records import PolicyVersion

PAUSE_MODES = {"continue": "in_place", "retract": "retract", "abort": "abort", "drain": "in_place"}
"""rollout.interrupt -> what SGLang calls it. Drained servers have nothing to interrupt."""
MANIFEST = "publication.json"
_JSON = {"Content-Type": "application/json"}
INSTALL_SECONDS = 300.0
"""Longest wait for a server's answer to one request of an install."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One policy version on disk, readable by every server."""

    version: PolicyVersion
    folder: Path
    digests: dict[str, str]
    """Engine parameter name (fused, as SGLang names it) -> 16 hex digits of the bytes' SHA-256."""

    def write_manifest(self) -> None:
        """Written last and renamed into place: a folder with a manifest is complete."""
        temporary = self.folder / f"{MANIFEST}.part"
        temporary.write_text(json.dumps({"version": self.version, "digests": self.digests}))
        os.replace(temporary, self.folder / MANIFEST)


def read_publication(folder: Path) -> Publication:
    """The publication in `folder`. Raises FileNotFoundError when it is not complete."""
    manifest = json.loads((folder / MANIFEST).read_text())
    return Publication(manifest["version"], folder, manifest["digests"])


Load = Callable[[aiohttp.ClientSession, str, Publication], Awaitable[None]]
"""Leaves the weights of a publication in a paused server."""


async def load_from_disk(session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
    """The server reads the publication's folder. Raises ServerError."""
    body = {
        "model_path": str(publication.folder),
        "weight_version": str(publication.version),
        # Refused while requests run; prefix caches are salted by version instead.
        "flush_cache": False,
    }
    await post(session, url, "/update_weights_from_disk", body)


async def install(
    session: aiohttp.ClientSession,
    url: str,
    publication: Publication,
    *,
    interrupt: str = "continue",
    load: Load = load_from_disk,
    timeout_seconds: float = INSTALL_SECONDS,
) -> None:
    """Makes the server at `url` serve `publication`, running requests included, and verifies what it loaded.

    `interrupt` (a key of PAUSE_MODES) says what becomes of running requests meanwhile.
    Raises ServerError, also when one of its answers takes longer than `timeout_seconds`, and WeightMismatch
    when the loaded bytes differ; the server then stays paused, because a token sampled from unknown weights
    would be worse than none.
    """
    await post(
        session, url, "/pause_generation", {"mode": PAUSE_MODES[interrupt]}, timeout_seconds=timeout_seconds
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            await load(session, url, publication)
    except TimeoutError:
        raise ServerError(f"{url} took no weights within {timeout_seconds:g} s") from None
    if interrupt == "retract":
        # A retracted request would find the keys and values of its own salt again.
        await _flush_cache(session, url, timeout_seconds)
    check = {"action": "checksum"}
    reply = await post(session, url, "/weights_checker", check, timeout_seconds=timeout_seconds)
    compare_digests(url, publication, reply)
    go_on = {"torch_empty_cache": False}
    await post(session, url, "/continue_generation", go_on, timeout_seconds=timeout_seconds)


async def _flush_cache(session: aiohttp.ClientSession, url: str, timeout_seconds: float) -> None:
    """Forgets all keys and values; a server refuses while requests hold some. Raises ServerError."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with session.post(f"{url}/flush_cache", timeout=timeout) as response:
            status, answer = response.status, await response.text()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ServerError(f"{url}/flush_cache failed: {type(error).__name__}: {error}") from error
    if status != 200:
        raise ServerError(f"{url}/flush_cache answered {status}: {answer[:300]}")


def compare_digests(url: str, publication: Publication, reply: object) -> None:
    """Raises WeightMismatch unless every digest the server reports is the published one."""
    try:
        ranks = [rank["checksums"] for rank in reply["ranks"]]  # type: ignore[index]
    except (KeyError, TypeError):
        raise ServerError(
            f"{url}/weights_checker answered {str(reply)[:200]!r}, expected ranks of checksums"
        ) from None
    if len(ranks) != 1:
        raise ServerError(
            f"{url} has {len(ranks)} tensor-parallel ranks; digests are compared for one rank only."
        )
    loaded, published = ranks[0], publication.digests
    wrong = sorted(
        name for name in loaded.keys() | published.keys() if loaded.get(name) != published.get(name)
    )
    if wrong:
        name = wrong[0]
        raise WeightMismatch(
            f"{url} does not hold version {publication.version}: {len(wrong)} of {len(published)} tensors "
            f"differ, first {name} (server {loaded.get(name)}, trainer {published.get(name)}). It serves "
            f"nothing "
            f"until its weights are verified."
        )


async def post(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    body: Mapping[str, object] | bytes,
    *,
    timeout_seconds: float = INSTALL_SECONDS,
) -> object:
    """The JSON answer to `body`, in bytes if it is JSON already. Raises ServerError when the server is gone,
    silent, or answers anything but 200."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    # As a file: weights in a request are too large to be handed to the socket at once.
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    try:
        async with session.post(f"{url}{path}", data=data, headers=_JSON, timeout=timeout) as response:
            answer = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
        raise ServerError(f"{url}{path} failed: {type(error).__name__}: {error}") from error
    if response.status != 200:
        raise ServerError(f"{url}{path} answered {response.status}: {str(answer)[:300]}")
    return answer
