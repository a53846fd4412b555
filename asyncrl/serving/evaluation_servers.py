"""A dedicated evaluation server: it holds one published version for as long as one of them takes,
while training publishes on to the others.

Owns hard links to the pinned publication, because the trainer deletes all but the last two.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from asyncrl.errors import ServerError
from asyncrl.loops.waits import Waits
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.publication import Publication


class EvaluationServers:
    """Evaluations take turns; each asks for its version at once, so that the version it gets is the one that
    was published when it was asked for."""

    def __init__(self, fleet: Fleet, waits: Waits, folder: Path) -> None:
        self.fleet = fleet
        self._waits = waits
        self._folder = folder
        self._turn = asyncio.Lock()
        shutil.rmtree(folder, ignore_errors=True)

    def pin(self, publication: Publication) -> Publication:
        """Keeps the files of `publication`; `holding` gives them back."""
        target = self._folder / f"v{publication.version}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in publication.folder.iterdir():
            os.link(path, target / path.name)
        return replace(publication, folder=target)

    @contextlib.asynccontextmanager
    async def holding(self, pinned: Publication) -> AsyncIterator[None]:
        """The servers hold `pinned`, verified, and nothing else. Raises ServerError when they cannot."""
        async with self._turn:
            try:
                self.fleet.serve_only(pinned)
                await self._waits.wait_until(
                    lambda: self._is_settled(pinned),
                    owner=f"evaluation of version {pinned.version}",
                    blocker="its own server",
                )
                if not self._holds(pinned):
                    reasons = "; ".join(server.reason for server in self.fleet.members.servers.values())
                    raise ServerError(f"no evaluation server holds version {pinned.version}: {reasons}")
                yield
            finally:
                shutil.rmtree(pinned.folder, ignore_errors=True)

    def _holds(self, pinned: Publication) -> bool:
        return any(server.version == pinned.version for server in self.fleet.members.serving())

    def _is_settled(self, pinned: Publication) -> bool:
        return (
            self._holds(pinned)
            or self.fleet.weight_owner.wants_publication
            or not self.fleet.members.has_hope()
        )
