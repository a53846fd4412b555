"""Publishing a version: a folder of weights with digests, then installed on every server at once.

A server that fails becomes an outcome for the controller, which decides what to do; training continues.
Publications are not synced to disk: after a crash they are written again from the checkpoint.
"""

import asyncio
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import aiohttp

from asyncrl.access import Keys
from asyncrl.disk import writing
from asyncrl.errors import ServerError
from asyncrl.records import PolicyVersion, PublishOutcome
from asyncrl.serving.publication import INSTALL_SECONDS, Load, Publication, install, load_from_disk
from asyncrl.serving.sglang import new_session
from asyncrl.trainer import ranks
from asyncrl.trainer.convert import export_weights
from asyncrl.trainer.digests import EngineDigests
from asyncrl.trainer.export import drain, fresh_part, remove, write_weights
from asyncrl.trainer.model import Policy, PolicyModel
from asyncrl.trainer.transports import make_transport

NUM_KEPT = 2
"""The current publication, and the one before it that a joining server may still be reading."""


class Publisher:
    """Owns RUN/publications and one HTTP session to the servers. Every rank has one; the first acts."""

    def __init__(
        self,
        folder: Path,
        *,
        base: Path,
        transport: str = "disk",
        interrupt: str = "continue",
        files: Load = load_from_disk,
        keys: Keys | None = None,
        timeout_seconds: float = INSTALL_SECONDS,
    ) -> None:
        """`transport` and `interrupt` are the recipe's serving.weight_transport and rollout.interrupt; with
        the transport `disk`, `files` says how a server comes to a publication's files. A server that does
        not answer a request within `timeout_seconds` is left to the controller."""
        self.folder = folder
        self._transport = make_transport(transport, files)
        self._keys = keys or Keys()
        self._interrupt = interrupt
        self._timeout_seconds = timeout_seconds
        self._config = base / "config.json"
        self._runner = asyncio.Runner()
        self._session: aiohttp.ClientSession | None = None

    def write(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """Writes the folder of `version`, manifest last, and deletes the ones before the last two.

        Raises DiskError when there is no room.
        """
        weights = export_weights(model)
        target = self.folder / f"v{version}"
        if not ranks.is_first():
            drain(weights)
            return Publication(version, target, {})
        digests = EngineDigests()
        with writing(f"Publication v{version}", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            part = fresh_part(target)
            write_weights(part, digests.watch(weights))
            shutil.copyfile(self._config, part / "config.json")
            remove(target)
            part.rename(target)
            publication = Publication(version, target, digests.result())
            publication.write_manifest()
        self._forget_all_but(range(version - NUM_KEPT + 1, version + 1))
        return publication

    def install(
        self, publication: Publication, servers: list[str], *, own: Iterable[str] = ()
    ) -> dict[str, PublishOutcome]:
        """Installs on all servers at once; server URL -> outcome. `own` are processes of the run."""
        for url in own:
            self._keys.add_own(url)
        if not ranks.is_first() or not servers:
            return {}
        return self._runner.run(self._install_everywhere(publication, servers))

    def close(self) -> None:
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.close()

    async def _install_everywhere(
        self, publication: Publication, servers: list[str]
    ) -> dict[str, PublishOutcome]:
        self._session = session = self._session or new_session(self._keys)
        outcomes = await asyncio.gather(*(self._install_on(session, url, publication) for url in servers))
        return dict(zip(servers, outcomes, strict=True))

    async def _install_on(
        self, session: aiohttp.ClientSession, url: str, publication: Publication
    ) -> PublishOutcome:
        begin = time.perf_counter()
        try:
            await install(
                session,
                url,
                publication,
                load=self._transport.load,
                interrupt=self._interrupt,
                timeout_seconds=self._timeout_seconds,
            )
        except ServerError as error:
            return PublishOutcome(False, time.perf_counter() - begin, str(error))
        return PublishOutcome(True, time.perf_counter() - begin)

    def _forget_all_but(self, versions: range) -> None:
        kept = {f"v{version}" for version in versions}
        for path in self.folder.iterdir():
            if path.name not in kept:
                remove(path) if not path.name.startswith(".") else shutil.rmtree(path, ignore_errors=True)
