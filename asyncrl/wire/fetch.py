"""Folders fetched over HTTP, and the controller's copies of what a trainer on another disk hands out.

A fetch gets only what is not here yet, from where an earlier attempt broke off. A file has its name once its
digest is the listed one; until then it is NAME.part. Blocking; no torch, and no proxy between the processes
of a run. The other side is `wire.file_service`.
"""

import asyncio
import contextlib
import fcntl
import functools
import http.client
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

from asyncrl.errors import AsyncrlError
from asyncrl.records import PolicyVersion
from asyncrl.run.checkpoints import HeldOutAccuracies, checkpoint_path, saved_versions, to_forget
from asyncrl.system.files import part_of, remove, replace, sha256_of, sync_tree, writing
from asyncrl.system.places import CHECKPOINTS, PUBLICATIONS
from asyncrl.wire.access import bearer
from asyncrl.wire.file_service import LISTING, ListedFile, Listing, is_safe

log = logging.getLogger(__name__)

NUM_PUBLICATIONS = 2
"""Copies that stay: the latest, and the one before it that a joining server may still be reading."""
TIMEOUT_SECONDS = 60.0
"""Longest silence of a connection."""
LISTING_SECONDS = 1800.0
"""The same for a listing, before which every file is hashed: checkpoints of 32 B parameters have 800 GB."""
MAX_FAILURES = 5
"""Connections in a row that brought no byte."""
PAUSE_SECONDS = 0.5
"""Pause between two attempts, times the number of failures so far."""
_CHUNK_BYTES = 2**20
_BROKEN = (OSError, http.client.HTTPException)


class FetchFailed(AsyncrlError):
    """A folder was not fetched: no answer, a refusal, or bytes that are not the listed ones."""


class NotThere(FetchFailed):
    """The other side has no such folder, not yet or no longer."""


def fetch_folder(url: str, target: Path, *, token: str) -> Path:
    """Leaves the files of the folder at `url` in `target`, with digests compared; returns `target`.

    Files of that size and digest that are there already stay, others in `target` are removed. Raises
    FetchFailed.
    """
    try:
        listing = msgspec.json.decode(
            fetch_file(f"{url}/{LISTING}", token=token, timeout_seconds=LISTING_SECONDS), type=Listing
        )
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FetchFailed(f"{url}/{LISTING} is not a list of files: {error}") from None
    unsafe = [file.name for file in listing.files if not is_safe(file.name)]
    if unsafe:
        raise FetchFailed(f"{url} lists {unsafe[0]!r}, which is outside of the folder.")
    target.mkdir(parents=True, exist_ok=True)
    wanted = {target / file.name for file in listing.files}
    _remove_others(target, wanted)
    for file in listing.files:
        _fetch_file(f"{url}/{quote(file.name)}", target / file.name, file, token)
    return target


def fetch_alone(url: str, target: Path, *, token: str) -> Path:
    """`fetch_folder` by one process of this machine at a time: the second finds what the first fetched."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return fetch_folder(url, target, token=token)


def fetch_copy(url: str, target: Path, *, token: str) -> Path:
    """`fetch_folder`, durable, and never half of it under the name of `target`; returns `target`.

    Files that `target` has already are not fetched again. Raises FetchFailed.
    """
    part = part_of(target)
    if target.exists() and not part.exists():
        shutil.copytree(target, part, copy_function=os.link)
    fetch_folder(url, part, token=token)
    sync_tree(part)
    replace(part, target)
    return target


def fetch_file(url: str, *, token: str, timeout_seconds: float = TIMEOUT_SECONDS) -> bytes:
    """A small file, whole. Raises FetchFailed."""
    for num_failures in range(1, MAX_FAILURES + 1):
        try:
            with _answer(url, token, {}, timeout_seconds) as response:
                return response.read()
        except _BROKEN as error:
            if num_failures == MAX_FAILURES:
                raise FetchFailed(f"{url} cannot be read: {type(error).__name__}: {error}") from error
            time.sleep(PAUSE_SECONDS * num_failures)
    raise AssertionError("the last attempt returns or raises")


def _remove_others(target: Path, wanted: set[Path]) -> None:
    """Files that are neither in `wanted` nor parts of those, and folders that are empty then."""
    for there in sorted(target.rglob("*"), reverse=True):
        if there.is_dir():
            if not any(there.iterdir()):
                there.rmdir()
        elif there not in wanted and there.with_suffix("") not in wanted:
            there.unlink()


def _fetch_file(url: str, path: Path, listed: ListedFile, token: str) -> None:
    if path.is_file() and path.stat().st_size == listed.size and sha256_of(path) == listed.sha256:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    if part.exists() and part.stat().st_size > listed.size:
        part.unlink()
    num_failures = 0
    while (have := part.stat().st_size if part.exists() else -1) < listed.size:
        try:
            _append(url, part, max(have, 0), token)
        except _BROKEN as error:
            grown = part.exists() and part.stat().st_size > max(have, 0)
            num_failures = 1 if grown else num_failures + 1
            if num_failures >= MAX_FAILURES:
                raise FetchFailed(f"{url} broke off {num_failures} times in a row: {error}") from error
            time.sleep(PAUSE_SECONDS * num_failures)
    if (found := sha256_of(part)) != listed.sha256:
        part.unlink()
        raise FetchFailed(
            f"{url} has SHA-256 {found}, the listing says {listed.sha256}: the file was changed or damaged. "
            f"The part that was fetched is deleted."
        )
    part.rename(path)


def _append(url: str, part: Path, have: int, token: str) -> None:
    """Adds the bytes from `have` on. Raises OSError or HTTPException when the connection breaks before the
    end; what came until then stays."""
    headers = {"Range": f"bytes={have}-"} if have else {}
    with part.open("ab") as file, _answer(url, token, headers) as response:
        if have and response.status != 206:
            # From the first byte on after all.
            file.truncate(0)
        while chunk := response.read1(_CHUNK_BYTES):
            file.write(chunk)
        if response.length:
            raise ConnectionError(f"{response.length} bytes are missing")


@contextlib.contextmanager
def _answer(
    url: str, token: str, headers: dict[str, str], timeout_seconds: float = TIMEOUT_SECONDS
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a GET. Raises FetchFailed for a refusal, which another attempt would meet again."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise FetchFailed(f"{url} is not the address of a folder, such as http://10.0.0.7:4711/files/model.")
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.connect()
        connection.sock.settimeout(timeout_seconds)
        connection.request("GET", parts.path, headers={**bearer(token), **headers})
        response = connection.getresponse()
        if response.status not in (200, 206):
            text = response.read(300).decode(errors="replace")
            kind = NotThere if response.status == 404 else FetchFailed
            raise kind(f"{url} answered {response.status}: {text}")
        yield response
    finally:
        connection.close()


class TrainerCopies:
    """Copies in the run folder. One fetch of a folder at a time, however many callers ask for it.

    A commit of the trainer is answered when its checkpoint is here, so that a lost node costs no committed
    step. A publication is fetched when a server that joins, or an evaluation, needs its files.
    """

    def __init__(
        self,
        run_folder: Path,
        *,
        token: str,
        num_kept: int,
        best_of_every: int,
        heldout: Callable[[], Mapping[PolicyVersion, float]],
    ) -> None:
        """`num_kept` and `best_of_every` say which checkpoints stay, as for the trainer's own (`to_forget`);
        `heldout` the accuracies that are known by now."""
        self._checkpoints = run_folder / CHECKPOINTS
        self._publications = run_folder / PUBLICATIONS
        self._token = token
        self._num_kept = num_kept
        self._best_of_every = best_of_every
        self._heldout = heldout
        self._running: dict[Path, asyncio.Task[None]] = {}
        """By what they make; each has the name of its URL."""
        self._fetched: list[Path] = []
        """Publications, the latest last."""
        self._warned: set[str] = set()
        """Publications whose failure was reported: callers that need one ask again and again."""

    async def checkpoint(self, url: str, version: PolicyVersion) -> Path:
        """The copy of the checkpoint at `url`, durable and complete. A canceled caller may ask
        again. Raises FetchFailed and DiskError."""
        target = checkpoint_path(self._checkpoints, version)
        # A trainer that was lost may have begun the same copy, from a node that is gone.
        while (running := self._running.get(target)) is not None and running.get_name() != url:
            await asyncio.wait([running])
        await asyncio.shield(self._once(url, target, self._copy_checkpoint))
        return target

    def publication(self, version: PolicyVersion) -> Path:
        """Where the copy of a publication will be; one of another writing of that version is no copy."""
        target = self._publications / f"v{version}"
        remove(target)
        return target

    def begin_publication(self, url: str, target: Path) -> None:
        """Begins to copy the publication at `url` to `target`, unless that is under way; a failure is told
        once, and a caller that needs the copy begins again."""
        if target in self._running:
            return
        task = self._once(url, target, self._copy_publication)
        task.add_done_callback(functools.partial(self._note_failure, url))

    def _once(self, url: str, target: Path, copy: Callable[[str, Path], None]) -> "asyncio.Task[None]":
        if target not in self._running:
            task = asyncio.create_task(asyncio.to_thread(copy, url, target), name=url)
            task.add_done_callback(functools.partial(self._forget, target))
            self._running[target] = task
        return self._running[target]

    def _forget(self, target: Path, task: "asyncio.Task[None]") -> None:
        del self._running[target]
        # The trainer that asked may be gone; its successor asks for what it commits itself.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("%s was not copied: %s", target.name, error)

    def _copy_checkpoint(self, url: str, target: Path) -> None:
        heldout = HeldOutAccuracies(self._checkpoints)
        with writing(f"A copy of {url}", self._checkpoints):
            heldout.add(self._heldout())
            fetch_copy(url, target, token=self._token)
        for version in to_forget(
            saved_versions(self._checkpoints),
            num_kept=self._num_kept,
            heldout=heldout,
            evaluated_every=self._best_of_every,
        ):
            remove(checkpoint_path(self._checkpoints, version))

    def _copy_publication(self, url: str, target: Path) -> None:
        try:
            with writing(f"A copy of {url}", self._publications):
                fetch_copy(url, target, token=self._token)
        except NotThere:
            # The trainer writes it in the background.
            return
        self._fetched = [*(folder for folder in self._fetched if folder != target), target]
        kept = self._fetched[-NUM_PUBLICATIONS:]
        for folder in self._publications.iterdir():
            if folder not in kept and not folder.name.startswith("."):
                remove(folder)

    def _note_failure(self, url: str, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or (error := task.exception()) is None or url in self._warned:
            return
        self._warned.add(url)
        log.warning("%s", error)
