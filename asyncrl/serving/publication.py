"""A published policy version: a folder of weights with digests, how one server comes to serve it, and which
side, trainer or controller, may write a server's weights.

The trainer writes publications and installs them after each step; the controller installs the latest one on
a server that joins later. A server serves only what was compared with the trainer's own digests. No torch.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import aiohttp

from asyncrl.errors import RequestRefused, ServerError, WeightMismatch
from asyncrl.loops import Waits
from asyncrl.records import PolicyVersion
from asyncrl.serving.sglang import control, http, weights
from asyncrl.system.files import overall_digest, write_whole
from asyncrl.wire.file_service import folder_url, is_url

MANIFEST = "publication.json"
DELTA = ".delta"
"""Suffix of the folder beside a publication's that has only what differs from the version before."""
CHANGED = ".changed"
"""Suffix of the folder beside a publication's that has only the tensors that steps change (model.lora)."""
LOOK_SECONDS = 0.1
"""Pause between two looks for a folder that is being written."""
INSTALL_SECONDS = http.UPDATE_SECONDS
"""Longest wait for a server's answer to one request of an install."""


@dataclass(frozen=True)
class Publication:
    """One policy version: on the servers that took it, and as a folder that every server can read."""

    version: PolicyVersion
    folder: Path
    digests: dict[str, str]
    """Hugging Face name of each tensor -> 16 hex digits (serving/tensor_digest.py). Empty where they are read
    from the folder, until that is written."""
    begin_copy: Callable[[], None] | None = field(default=None, compare=False)
    """Where the trainer has another disk: begins to bring the folder here, unless that is under way."""
    is_kept: bool = False
    """Whether servers load it from a copy on their host, which the delta of the next version changes."""

    @cached_property
    def overall(self) -> str:
        """Digest of the digests, once they are complete."""
        return overall_digest(self.digests)

    def sources(self) -> list[Path]:
        """Folders to load it from, the smallest first. A server that holds the version before needs the
        delta, one that began with the base model the changed tensors; digests tell of one that needs all."""
        beside = (self.folder.with_name(self.folder.name + suffix) for suffix in (DELTA, CHANGED))
        return [*(folder for folder in beside if folder.is_dir()), self.folder]

    def is_written(self) -> bool:
        return bool(self.digests)

    def write_manifest(self) -> None:
        """Written last and renamed into place: a folder with a manifest is complete."""
        manifest = {"version": self.version, "digests": self.digests, "is_kept": self.is_kept}
        write_whole(self.folder / MANIFEST, json.dumps(manifest))


def read_publication(folder: Path) -> Publication:
    """The publication in `folder`. Raises FileNotFoundError when it is not complete."""
    manifest = json.loads((folder / MANIFEST).read_text())
    return Publication(manifest["version"], folder, manifest["digests"], is_kept=manifest["is_kept"])


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
        publication = replace(publication, digests=found.digests, is_kept=found.is_kept)
    return publication


class Load(Protocol):
    """How the weights of a publication come to a server. Both raise ServerError."""

    async def prepare(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        """Brings the folder near a server, which serves meanwhile, where that is far away."""

    async def __call__(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        """Leaves the weights in a paused server."""


class LoadFolders(Load):
    """Servers read folders: at the same path as here, or from the URL that `place` gives for a path, and a
    folder from a URL, a delta and a publication that is kept by way of a copy on their host."""

    def __init__(self, place: Callable[[Path], str] = str) -> None:
        self._place = place

    async def prepare(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        place = self._place(publication.folder)
        if is_url(place) or publication.is_kept or place.endswith(DELTA):
            await weights.prepare_weights(session, url, place)

    async def __call__(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        place = self._place(publication.folder)
        await weights.update_weights_from_disk(session, url, place, publication.version)


def find_load(*, shared_disk: bool, service_url: Callable[[], str], run_folder: Path | None) -> Load:
    """The one that `cluster.shared_disk` asks for. Without one, servers fetch publications from the
    controller's service, whose URL is asked for when it is needed."""
    if shared_disk:
        return LoadFolders()
    assert run_folder is not None, "publications are handed out from the run folder"
    return LoadFolders(lambda folder: folder_url(service_url(), folder, run_folder))


load_from_disk = LoadFolders()


@dataclass(frozen=True, slots=True)
class Installed:
    pause_seconds: float
    """Time in which the server generated nothing."""
    refusals: list[str]
    """Why it needed another source than the first, in the order of the sources."""


async def install(
    session: aiohttp.ClientSession,
    url: str,
    publication: Publication,
    *,
    interrupt: str = "continue",
    load: Load = load_from_disk,
    timeout_seconds: float = INSTALL_SECONDS,
) -> Installed:
    """Makes the server at `url` serve `publication`, running requests included, and verifies what it loaded.

    A source that the server refuses, or that leaves other bytes than the published ones, is followed by the
    next. `interrupt` (rollout.interrupt) says what happens to running requests meanwhile. Raises ServerError,
    also when an answer takes longer than `timeout_seconds`, and WeightMismatch when the loaded bytes differ.
    The server then stays paused: a token sampled from unknown weights would be worse than none.
    """
    sources, refusals, begin = publication.sources(), list[str](), 0.0
    for folder in sources:
        source = replace(publication, folder=folder)
        try:
            await _within(timeout_seconds, url, load.prepare(session, url, source))
            if not begin:
                begin = time.monotonic()
                await control.pause_generation(
                    session, url, interrupt=interrupt, timeout_seconds=timeout_seconds
                )
            await _within(timeout_seconds, url, load(session, url, source))
        except RequestRefused as error:
            if folder == sources[-1]:
                raise
            difference: str | None = str(error)
        else:
            difference = await _difference(session, url, publication, timeout_seconds)
        if difference is None:
            break
        refusals.append(difference)
    else:
        raise WeightMismatch(refusals[-1])
    if interrupt == "retract":
        # A retracted request would find the keys and values of its own salt again.
        await control.flush_cache(session, url, timeout_seconds=timeout_seconds)
    await control.continue_generation(session, url, timeout_seconds=timeout_seconds)
    return Installed(time.monotonic() - begin, refusals)


async def _within(timeout_seconds: float, url: str, work: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await work
    except TimeoutError:
        raise ServerError(f"{url} took no weights within {timeout_seconds:g} s") from None


async def _difference(
    session: aiohttp.ClientSession, url: str, publication: Publication, timeout_seconds: float
) -> str | None:
    """As `find_difference`, of what the server holds now. Every tensor's digest is asked for only where the
    digest of all differs."""
    found = await weights.overall_digests(session, url, timeout_seconds=timeout_seconds)
    if found and set(found) == {publication.overall}:
        return None
    ranks = await weights.weight_digests(session, url, timeout_seconds=timeout_seconds)
    return find_difference(url, publication, ranks)


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


class WeightOwner:
    """The latest publication, and the side that writes a server's weights now: the trainer's publish or the
    server's join. One per fleet.

    The trainer does from the reply to a take that named the server until it reports the outcome. So two
    publications never mix on a server.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._publication: Publication | None = None
        self._handed: set[str] = set()
        """URLs that the trainer was last told to publish to, until it reports the outcome."""
        self.is_with_trainer = False
        """The trainer has a batch: its next publication will come."""
        self.must_sleep = False
        """Servers fall asleep or sleep, because the trainer needs their GPUs for the batch that it gets."""
        self.wants_publication = False
        """A server loaded other bytes than were published. The files may be damaged: the trainer
        writes its weights again."""

    def is_published(self) -> bool:
        return self._publication is not None

    def published(self) -> Publication:
        """The version that was announced last."""
        assert self._publication is not None, "the trainer announces its version before anything else"
        return self._publication

    async def until_written(self, owner: str, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Waits until the folder of the version that was announced last is complete, or `unless` is true."""
        while not unless() and not self.published().is_written():
            await self._look_for(self.published(), owner, unless)

    async def _look_for(self, publication: Publication, owner: str, unless: Callable[[], bool]) -> None:
        found = await written(
            publication,
            self._waits,
            owner=owner,
            unless=lambda: unless() or not self.is_latest(publication),
        )
        if self.is_latest(publication):
            self._publication = found

    def is_latest(self, publication: Publication) -> bool:
        return self._publication is publication

    def is_handed(self, url: str) -> bool:
        """Whether the trainer may be writing to this server."""
        return url in self._handed

    def may_start_process(self) -> bool:
        """Whether a server's process may take memory now."""
        return not (self.must_sleep and self.is_with_trainer)

    def may_install(self, url: str) -> bool:
        return self._publication is not None and url not in self._handed and not self.must_sleep

    def renew(self, publication: Publication) -> None:
        """The trainer has written a publication: servers join with this one from now on."""
        self._publication, self.wants_publication = publication, False
        self._waits.notify()

    def ask_to_rewrite(self, damaged: Publication) -> None:
        if self.is_latest(damaged):
            self.wants_publication = True
            self._waits.notify()

    def give(self, urls: Iterable[str]) -> None:
        """The trainer publishes to `urls` next."""
        self.is_with_trainer, self._handed = True, set(urls)

    def take_back(self) -> set[str]:
        """The trainer has reported, or another one came; the URLs that it was given."""
        handed, self._handed = self._handed, set()
        self.is_with_trainer = self.must_sleep = False
        self._waits.notify()
        return handed
