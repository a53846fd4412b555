"""Publishing a version: its weights on every server at once, verified, and a folder of them for later.

With the transport `disk` the folder is written first. With `distributed` the weights come from the
model's memory, and the folder is written in the background from a copy. A server that fails becomes an
outcome for the controller, which decides what to do; training continues. Publications are not synced to disk:
after a crash they are written again from the checkpoint.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.records import PolicyVersion, PublishOutcome
from asyncrl.serving.publication import (
    CHANGED,
    INSTALL_SECONDS,
    Load,
    Publication,
    install,
    load_from_disk,
)
from asyncrl.serving.sglang.http import new_session
from asyncrl.system.files import fresh_part, part_of, remove, writing
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.network.export import drain, write_index, write_weights
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.publishing.digests import Digests
from asyncrl.trainer.publishing.fixed_tensors import FOLDER, FixedTensors
from asyncrl.trainer.publishing.folder_writer import FolderWriter
from asyncrl.trainer.publishing.from_memory import MemoryBroadcast
from asyncrl.trainer.ranks import ranks
from asyncrl.wire.access import Keys

NUM_KEPT = 2
"""The current publication, and the one before it that a joining server may still be reading."""


class Publisher:
    """Owns RUN/publications and the sessions to the servers. Every rank has one and makes the same calls; the
    first speaks to servers and completes folders."""

    def __init__(
        self,
        folder: Path,
        *,
        base: Path,
        transport: str = "disk",
        bucket_bytes: int | None = None,
        interrupt: str = "continue",
        files: Load = load_from_disk,
        keys: Keys | None = None,
        timeout_seconds: float = INSTALL_SECONDS,
        failed: Callable[[BaseException], None],
    ) -> None:
        """`transport`, `bucket_bytes` and `interrupt` are the recipe's serving.weight_transport,
        serving.weight_bucket_bytes and rollout.interrupt; with the transport `disk`, `files` says how a
        server comes to a publication's files. A server that does not answer a request within
        `timeout_seconds` is left to the controller. `failed` is called in a thread when a folder could not be
        written in the background, and should end the process."""
        self.folder = folder
        self._files = files
        self._keys = keys or Keys()
        self._interrupt = interrupt
        self._timeout_seconds = timeout_seconds
        self._config = base / "config.json"
        self._runner = asyncio.Runner()
        self._session: aiohttp.ClientSession | None = None
        self._writer = FolderWriter(failed)
        self._fixed = FixedTensors(folder)
        self._memory = (
            MemoryBroadcast(
                self._keys, bucket_bytes=bucket_bytes, interrupt=interrupt, timeout_seconds=timeout_seconds
            )
            if transport == "distributed"
            else None
        )

    def write(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """Writes the folder of `version`, manifest last, and deletes the ones before the last two.

        Raises DiskError when there is no room.
        """
        self._writer.wait()
        if self._fixed.are_many(model):
            return self._write_in_parts(version, model)
        weights = export_weights(model)
        target = self.folder / f"v{version}"
        if not ranks.is_first():
            drain(weights)
            return Publication(version, target, {})
        digests = Digests()
        with writing(f"Publication v{version}", self.folder):
            part = self._fresh_part(target)
            write_weights(part, digests.watch(weights))
            publication = Publication(version, target, digests.by_name)
            self._complete(publication, part)
        return publication

    def _write_in_parts(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """As `write`, with what no step changes written once."""
        target = self.folder / f"v{version}"
        if not ranks.is_first():
            self._fixed.write(model, None, None)
            return Publication(version, target, {})
        beside = target.with_name(target.name + CHANGED)
        with writing(f"Publication v{version}", self.folder):
            part, changed = self._fresh_part(target), self._fresh_part(beside)
            publication = Publication(version, target, self._fixed.write(model, part, changed))
            shutil.copyfile(self._config, changed / "config.json")
            remove(beside)
            changed.rename(beside)
            self._complete(publication, part)
        return publication

    def prepare(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """Writes the folder while servers still run, unless weights are sent from memory."""
        if self._memory is None:
            return self.write(version, model)
        return Publication(version, self.folder / f"v{version}", {})

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
        if self._memory is not None:
            return self._install_from_memory(self._memory, publication, model, servers)
        if not servers:
            return {}
        return ranks.first_alone(lambda: self._runner.run(self._install_everywhere(publication, servers)))

    def close(self) -> None:
        """Returns when the last folder is written."""
        self._writer.wait()
        if self._memory is not None:
            self._memory.close()
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.close()

    def _install_from_memory(
        self,
        memory: MemoryBroadcast,
        publication: Publication,
        model: Policy | PolicyModel,
        servers: Sequence[str],
    ) -> dict[str, PublishOutcome]:
        # It is written from the copies that the next version overwrites.
        self._writer.wait()
        part = part_of(publication.folder)
        if ranks.is_first():
            with writing(f"Publication v{publication.version}", self.folder):
                self._fresh_part(publication.folder)
        outcomes = memory.send(publication, model, servers)

        def complete() -> None:
            places = memory.places()
            if len(set(places.values())) > 1:
                write_index(part, places, num_bytes=memory.num_bytes())
            self._complete(publication, part)

        self._writer.begin(part, memory.files(), finish=complete)
        return outcomes

    def _fresh_part(self, target: Path) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return fresh_part(target)

    def _complete(self, publication: Publication, part: Path) -> None:
        """Gives a folder with all weights its name and its manifest, and deletes older ones."""
        shutil.copyfile(self._config, part / "config.json")
        remove(publication.folder)
        part.rename(publication.folder)
        publication.write_manifest()
        version = publication.version
        self._forget_all_but(range(version - NUM_KEPT + 1, version + 1))

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
            await install(
                session,
                url,
                publication,
                load=self._files,
                interrupt=self._interrupt,
                timeout_seconds=self._timeout_seconds,
            )
        except ServerError as error:
            return PublishOutcome(False, time.perf_counter() - begin, str(error))
        return PublishOutcome(True, time.perf_counter() - begin)

    def _forget_all_but(self, versions: range) -> None:
        kept = {FOLDER, *(f"v{version}{end}" for version in versions for end in ("", CHANGED))}
        for path in self.folder.iterdir():
            if path.name not in kept:
                remove(path) if not path.name.startswith(".") else shutil.rmtree(path, ignore_errors=True)
