"""A published policy version: a folder of weights with digests, and how one server comes to serve it.

The trainer writes publications and installs them after each step; the controller installs the latest one on
a server that joins later. A server serves only what was compared with the trainer's own digests. No torch.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.files.service import folder_url
from asyncrl.records import PolicyVersion
from asyncrl.serving import sglang

MANIFEST = "publication.json"
INSTALL_SECONDS = sglang.UPDATE_SECONDS
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
    await sglang.update_weights_from_disk(session, url, publication.folder, publication.version)


def load_over_http(service_url: Callable[[], str], run_folder: Path) -> Load:
    """For servers that see no disk of ours: each fetches the publication from the controller's service, whose
    URL is asked for when it is needed."""

    async def load(session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        folder = folder_url(service_url(), publication.folder, run_folder)
        await sglang.update_weights_from_disk(session, url, folder, publication.version)

    return load


def find_load(*, shared_disk: bool, service_url: Callable[[], str], run_folder: Path | None) -> Load:
    """The one that `cluster.shared_disk` asks for."""
    if shared_disk:
        return load_from_disk
    assert run_folder is not None, "publications are handed out from the run folder"
    return load_over_http(service_url, run_folder)


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

    `interrupt` (rollout.interrupt) says what happens to running requests meanwhile. Raises ServerError, also
    when an answer takes longer than `timeout_seconds`, and WeightMismatch when the loaded bytes differ. The
    server then stays paused: a token sampled from unknown weights would be worse than none.
    """
    await sglang.pause_generation(session, url, interrupt=interrupt, timeout_seconds=timeout_seconds)
    try:
        async with asyncio.timeout(timeout_seconds):
            await load(session, url, publication)
    except TimeoutError:
        raise ServerError(f"{url} took no weights within {timeout_seconds:g} s") from None
    if interrupt == "retract":
        # A retracted request would find the keys and values of its own salt again.
        await sglang.flush_cache(session, url, timeout_seconds=timeout_seconds)
    digests = await sglang.weight_digests(session, url, timeout_seconds=timeout_seconds)
    compare_digests(url, publication, digests)
    await sglang.continue_generation(session, url, timeout_seconds=timeout_seconds)


def compare_digests(url: str, publication: Publication, loaded: Mapping[str, str]) -> None:
    """Raises WeightMismatch unless every digest of `loaded`, what the server holds, is the published one."""
    published = publication.digests
    wrong = sorted(
        name for name in loaded.keys() | published.keys() if loaded.get(name) != published.get(name)
    )
    if wrong:
        name = wrong[0]
        raise WeightMismatch(
            f"{url} does not hold version {publication.version}: {len(wrong)} of {len(published)} tensors "
            f"differ, first {name} (server {loaded.get(name)}, trainer {published.get(name)}). It serves "
            f"nothing until its weights are verified."
        )
