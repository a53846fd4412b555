"""Copies in the run folder of what a trainer on another disk hands out: its checkpoints and publications.

A commit of the trainer is answered when its checkpoint is here, so that a lost node costs no committed step.
A publication is fetched when a server that joins, or an evaluation, needs its files; between the trainer's
node and servers that serve already it goes straight.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from asyncrl.records import PolicyVersion
from asyncrl.run.checkpoints import HeldOutAccuracies, checkpoint_path, saved_versions, to_forget
from asyncrl.system.files import remove, writing
from asyncrl.system.places import CHECKPOINTS, PUBLICATIONS
from asyncrl.wire.files.fetch import NotThere, fetch_copy

log = logging.getLogger(__name__)
NUM_PUBLICATIONS = 2
"""The latest copy, and the one before it that a joining server may still be reading."""


class TrainerCopies:
    """Copies of one run. One fetch of a folder at a time, however many callers ask for it."""

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
