"""Publishing a version: a folder of its weights is written, then installed on every server at once, verified.

A server that fails becomes an outcome for the controller, which decides what to do; training continues.
Publications are not synced to disk: after a crash they are written again from the checkpoint. The transport
`distributed` is another publisher (`from_memory`).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.records import PolicyVersion, PublishOutcome
from asyncrl.serving.publication import INSTALL_SECONDS, Load, Publication, install, load_from_disk
from asyncrl.serving.sglang.http import new_session
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.publishing.folders import PublicationFolders
from asyncrl.trainer.ranks import ranks
from asyncrl.wire.access import Keys


class Encoding(Protocol):
    """The form in which a version is written for servers to read. Every rank makes the same calls."""

    columns: dict[str, float]
    """Columns of the last version, on the first rank."""

    def write(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """All weights, for any server."""

    def prepare(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """All weights, or what servers need that hold the version before."""


class Publisher:
    """Owns RUN/publications and the sessions to the servers. Every rank has one and makes the same calls; the
    first speaks to servers and completes folders."""

    def __init__(
        self,
        folder: Path,
        *,
        base: Path,
        interrupt: str = "continue",
        files: Load = load_from_disk,
        encoded: Callable[[PublicationFolders, Load], tuple[Encoding, Load]] = lambda *whole: whole,
        keys: Keys | None = None,
        timeout_seconds: float = INSTALL_SECONDS,
        failed: Callable[[BaseException], None],
    ) -> None:
        """`interrupt` is the recipe's rollout.interrupt; `files` says how a server comes to a publication's
        files, and `encoded` what is written in place of whole folders. A server that does not answer a
        request within `timeout_seconds` is left to the controller. `failed` is called in a thread when a
        folder could not be written in the background, and should end the process."""
        self.folder = folder
        self._folders = PublicationFolders(folder, base=base, failed=failed)
        self._encoding, self._files = encoded(self._folders, files)
        self._keys = keys or Keys()
        self._interrupt = interrupt
        self._timeout_seconds = timeout_seconds
        self._runner = asyncio.Runner()
        self._session: aiohttp.ClientSession | None = None

    def write(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """Writes the folder of `version`. Raises DiskError when there is no room."""
        return self._encoding.write(version, model)

    def prepare(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """Writes what servers read while they still run."""
        return self._encoding.prepare(version, model)

    def columns(self, outcomes: Mapping[str, PublishOutcome]) -> dict[str, float]:
        """Columns of the step whose version was installed with `outcomes`."""
        pauses = (outcome.seconds for outcome in outcomes.values())
        healed = sum(1 for outcome in outcomes.values() if outcome.is_installed and outcome.detail)
        measured = {"publish_pause_seconds": max(pauses, default=0.0), "num_healed_publishes": float(healed)}
        return self._folders.columns | self._encoding.columns | measured

    def install(
        self,
        publication: Publication,
        model: Policy | PolicyModel,
        servers: Sequence[str],
        *,
        own: Iterable[str] = (),
    ) -> dict[str, PublishOutcome]:
        """Installs what was prepared on all servers at once; server URL -> outcome, on every rank. `own` are
        processes of the run. Servers may take longer than ranks wait for each other."""
        for url in own:
            self._keys.add_own(url)
        return self._install(publication, model, servers)

    def close(self) -> None:
        """Returns when the last folder is written."""
        self._folders.wait()
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.close()

    def _install(
        self, publication: Publication, model: Policy | PolicyModel, servers: Sequence[str]
    ) -> dict[str, PublishOutcome]:
        if not servers:
            return {}
        return ranks.first_alone(lambda: self._runner.run(self._install_everywhere(publication, servers)))

    async def _install_everywhere(
        self, publication: Publication, servers: Sequence[str]
    ) -> dict[str, PublishOutcome]:
        self._session = session = self._session or new_session(self._keys)
        outcomes = await asyncio.gather(*(self._install_on(session, url, publication) for url in servers))
        return dict(zip(servers, outcomes, strict=True))

    async def _install_on(
        self, session: aiohttp.ClientSession, url: str, publication: Publication
    ) -> PublishOutcome:
        begin = time.perf_counter()
        try:
            found = await install(
                session,
                url,
                publication,
                load=self._files,
                interrupt=self._interrupt,
                timeout_seconds=self._timeout_seconds,
            )
        except ServerError as error:
            return PublishOutcome(False, time.perf_counter() - begin, str(error))
        return PublishOutcome(True, found.pause_seconds, "; ".join(found.refusals))
