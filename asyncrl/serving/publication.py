"""A published policy version: a folder of weights with digests, and how one server comes to serve it.

The trainer writes publications and installs them after each step; the controller installs the latest one on
a server that joins later. A server serves only what was compared with the trainer's own digests. No torch.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.loops.waits import Waits
from asyncrl.records import PolicyVersion
from asyncrl.serving.sglang import control, http, weights
from asyncrl.system.files import write_whole
from asyncrl.wire.files.service import folder_url

MANIFEST = "publication.json"
CHANGED = ".changed"
"""Suffix of the folder beside a publication's that has only the tensors that steps change (model.lora)."""
LOOK_SECONDS = 0.1
"""Pause between two looks for a folder that is being written."""
INSTALL_SECONDS = http.UPDATE_SECONDS
"""Longest wait for a server's answer to one request of an install."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One policy version: on the servers that took it, and as a folder that every server can read."""

    version: PolicyVersion
    folder: Path
    digests: dict[str, str]
    """Hugging Face name of each tensor -> 16 hex digits (serving/tensor_digest.py). Empty where they are read
    from the folder, until that is written."""
    begin_copy: Callable[[], None] | None = field(default=None, compare=False)
    """Where the trainer has another disk: begins to bring the folder here, unless that is under way."""

    def sources(self) -> list[Path]:
        """Folders to load it from. A server that began with the base model needs the changed tensors alone;
        digests tell of one that needs all."""
        changed = self.folder.with_name(self.folder.name + CHANGED)
        return [changed, self.folder] if changed.is_dir() else [self.folder]

    def is_written(self) -> bool:
        return bool(self.digests)

    def write_manifest(self) -> None:
        """Written last and renamed into place: a folder with a manifest is complete."""
        manifest = {"version": self.version, "digests": self.digests}
        write_whole(self.folder / MANIFEST, json.dumps(manifest))


def read_publication(folder: Path) -> Publication:
    """The publication in `folder`. Raises FileNotFoundError when it is not complete."""
    manifest = json.loads((folder / MANIFEST).read_text())
    return Publication(manifest["version"], folder, manifest["digests"])


def announced_publication(version: PolicyVersion, folder: Path) -> Publication:
    """As it is now: the trainer may still be writing the folder."""
    try:
        return read_publication(folder)
    except FileNotFoundError:
        return Publication(version, folder, {})


async def written(
    publication: Publication, waits: Waits, *, owner: str, unless: Callable[[], bool] = lambda: False
) -> Publication:
    """Waits until the folder of `publication` is complete, or `unless` is true. It polls."""
    while not publication.is_written() and not unless():
        if publication.begin_copy is not None:
            publication.begin_copy()
        await waits.wait_until(
            unless,
            owner=owner,
            blocker=f"the folder of version {publication.version}, which the trainer writes",
            timeout_seconds=LOOK_SECONDS,
        )
        found = announced_publication(publication.version, publication.folder)
        publication = replace(publication, digests=found.digests)
    return publication


Load = Callable[[aiohttp.ClientSession, str, Publication], Awaitable[None]]
"""Leaves the weights of a publication in a paused server."""


async def load_from_disk(session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
    """The server reads the publication's folder. Raises ServerError."""
    await weights.update_weights_from_disk(session, url, publication.folder, publication.version)


def load_over_http(service_url: Callable[[], str], run_folder: Path) -> Load:
    """For servers that see no disk of ours: each fetches the publication from the controller's service, whose
    URL is asked for when it is needed."""

    async def load(session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        folder = folder_url(service_url(), publication.folder, run_folder)
        await weights.update_weights_from_disk(session, url, folder, publication.version)

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
    await control.pause_generation(session, url, interrupt=interrupt, timeout_seconds=timeout_seconds)
    for folder in publication.sources():
        await _load(session, url, replace(publication, folder=folder), load, timeout_seconds)
        digests = await weights.weight_digests(session, url, timeout_seconds=timeout_seconds)
        if find_difference(url, publication, digests) is None:
            break
    if interrupt == "retract":
        # A retracted request would find the keys and values of its own salt again.
        await control.flush_cache(session, url, timeout_seconds=timeout_seconds)
    compare_digests(url, publication, digests)
    await control.continue_generation(session, url, timeout_seconds=timeout_seconds)


async def _load(
    session: aiohttp.ClientSession, url: str, publication: Publication, load: Load, timeout_seconds: float
) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await load(session, url, publication)
    except TimeoutError:
        raise ServerError(f"{url} took no weights within {timeout_seconds:g} s") from None


def compare_digests(url: str, publication: Publication, ranks: Sequence[Mapping[str, str]]) -> None:
    """Raises WeightMismatch unless every digest of each rank of the server is the published one."""
    if (difference := find_difference(url, publication, ranks)) is not None:
        raise WeightMismatch(difference)


def find_difference(url: str, publication: Publication, ranks: Sequence[Mapping[str, str]]) -> str | None:
    """A sentence where a rank of the server holds another tensor than the published one; else None."""
    published = publication.digests
    for rank, loaded in enumerate(ranks):
        wrong = sorted(
            name for name in loaded.keys() | published.keys() if loaded.get(name) != published.get(name)
        )
        if wrong:
            name, of_rank = wrong[0], f" on rank {rank}" if len(ranks) > 1 else ""
            return (
                f"{url} does not hold version {publication.version}{of_rank}: {len(wrong)} of "
                f"{len(published)} tensors differ, first {name} (server {loaded.get(name)}, trainer "
                f"{published.get(name)}). It serves nothing until its weights are verified."
            )
    return None
