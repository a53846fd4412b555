"""Publishing a version: a folder of its weights is written, then installed on every server at once, verified.

A server that fails becomes an outcome for the controller, which decides what to do; training continues. With
a manifest a folder is complete, and the folders of the last two versions are kept. They are not synced to
disk: after a crash they are written again from the checkpoint. The transport `distributed` is another
publisher (`from_memory`).
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Required, TypedDict, Unpack

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.records import PolicyVersion, PublishOutcome
from asyncrl.serving.publication import (
    CHANGED,
    DELTA,
    INSTALL_SECONDS,
    Load,
    Publication,
    install,
    load_from_disk,
)
from asyncrl.serving.sglang.http import new_session
from asyncrl.system.files import fresh_part, part_of, remove, writing
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.network.export import drain, file_names, write_index, write_weights
from asyncrl.trainer.network.model import Policy, PolicyModel
from asyncrl.trainer.publishing.host_weights import (
    FOLDER,
    Digests,
    FixedTensors,
    FolderWriter,
    HostWeights,
    link,
)
from asyncrl.trainer.ranks import ranks
from asyncrl.wire.access import Keys

NUM_KEPT = 2
"""The current publication, and the one before it that a joining server may still be reading."""


class PublicationFolders:
    """Owns RUN/publications. Every rank has one and makes the same calls; the first completes folders."""

    def __init__(self, folder: Path, *, base: Path, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called in a thread when a folder could not be written in the background, and should end
        the process."""
        self._folder = folder
        self._config = base / "config.json"
        self._writer = FolderWriter(failed)
        self.fixed = FixedTensors(folder)
        self._previous: Path | None = None
        """The last folder that was written from memory: it has the files of what no step changes."""
        self.columns: dict[str, float] = {}
        """Columns of the last version, on the first rank."""

    def path(self, version: PolicyVersion) -> Path:
        return self._folder / f"v{version}"

    def write(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """Writes the folder of `version`, manifest last, and deletes the ones before the last two.

        Raises DiskError when there is no room.
        """
        self.wait()
        self._previous = None
        if self.fixed.are_many(model):
            return self._write_in_parts(version, model)
        weights = export_weights(model)
        if not ranks.is_first():
            drain(weights)
            return Publication(version, self.path(version), {})
        digests = Digests()
        with writing(f"Publication v{version}", self._folder):
            part = self.fresh_part(self.path(version))
            write_weights(part, digests.watch(weights))
            self.columns = {"publish_bytes": size_of(part)}
            publication = Publication(version, self.path(version), digests.by_name)
            self._complete(publication, part)
        return publication

    prepare = write

    def _write_in_parts(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """As `write`, with what no step changes written once."""
        target = self.path(version)
        if not ranks.is_first():
            self.fixed.write(model, None, None)
            return Publication(version, target, {})
        beside = target.with_name(target.name + CHANGED)
        with writing(f"Publication v{version}", self._folder):
            part, changed = self.fresh_part(target), self.fresh_part(beside)
            publication = Publication(version, target, self.fixed.write(model, part, changed))
            self.columns = {"publish_bytes": size_of(changed)}
            self._complete_beside(changed, beside)
            self._complete(publication, part)
        return publication

    def complete(self, publication: Publication, host: HostWeights) -> None:
        """Gives a part that has the files of `host` its index, its name and its manifest."""
        part, places = part_of(publication.folder), host.places()
        if len(set(places.values())) > 1:
            write_index(part, places, num_bytes=host.num_bytes())
        self._complete(publication, part)

    def begin(
        self, publication: Publication, host: HostWeights, *, splits: bool = False, is_complete: bool = False
    ) -> None:
        """Writes the folder from `host`, which must not change until `wait`, in the background. The first
        rank has made its part. `splits`: the tensors that steps change also get a folder of their own.
        `is_complete`: the folder is there, and each file takes the place of another one."""
        target, names = publication.folder, file_names(len(host.plan))
        part, beside = part_of(target), target.with_name(target.name + CHANGED)
        changed = {name for name, bucket in zip(names, host.plan, strict=True) if not bucket.is_fixed}

        def complete() -> None:
            if is_complete:
                for written in part.iterdir():
                    os.replace(written, target / written.name)
                return part.rmdir()
            if splits:
                split = self.fresh_part(beside)
                for file in changed:
                    link(part / file, split / file)
                self._complete_beside(split, beside)
            self.complete(publication, host)

        files = host.files()
        if self._previous is not None and self._previous.is_dir():
            for name in files.keys() - changed:
                link(self._previous / name, part / name)
                del files[name]
        self._previous = target
        self._writer.begin(part, files, finish=complete)

    def wait(self) -> None:
        """Returns when no folder is being written."""
        self._writer.wait()

    def fresh_part(self, target: Path) -> Path:
        """An empty folder to write `target` in. A delta beside `target` is that of a trainer that is gone."""
        self._folder.mkdir(parents=True, exist_ok=True)
        remove(target.with_name(target.name + DELTA))
        return fresh_part(target)

    def _complete_beside(self, part: Path, target: Path) -> None:
        shutil.copyfile(self._config, part / "config.json")
        remove(target)
        part.rename(target)

    def _complete(self, publication: Publication, part: Path) -> None:
        """Gives a folder with all weights its name and its manifest, and deletes older ones."""
        self._complete_beside(part, publication.folder)
        publication.write_manifest()
        kept = {FOLDER}
        for version in range(publication.version - NUM_KEPT + 1, publication.version + 1):
            kept |= {self.path(version).name + suffix for suffix in ("", CHANGED, DELTA)}
        for path in self._folder.iterdir():
            if path.name not in kept:
                remove(path) if not path.name.startswith(".") else shutil.rmtree(path, ignore_errors=True)


def size_of(folder: Path) -> float:
    """Bytes of the weights in `folder`."""
    return float(sum(os.path.getsize(file) for file in folder.glob("*.safetensors")))


class Encoding(Protocol):
    """The form in which a version is written for servers to read. Every rank makes the same calls."""

    columns: dict[str, float]
    """Columns of the last version, on the first rank."""

    def write(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """All weights, for any server."""

    def prepare(self, version: PolicyVersion, model: Policy | PolicyModel) -> Publication:
        """All weights, or what servers need that hold the version before."""


Encoded = Callable[[PublicationFolders, Load], tuple[Encoding, Load]]
"""(whole folders, how a server loads them) -> the form that is written in their place, and how it is
loaded."""


class Shared(TypedDict, total=False):
    """Arguments of every publisher."""

    base: Required[Path]
    """Folder of the model whose configuration servers read."""
    interrupt: str
    """The recipe's rollout.interrupt."""
    keys: Keys | None
    timeout_seconds: float
    """A server that does not answer a request within it is left to the controller."""
    failed: Required[Callable[[BaseException], None]]
    """Called in a thread when a folder could not be written in the background; should end the process."""


class Publisher:
    """Owns RUN/publications and the sessions to the servers. Every rank has one and makes the same calls; the
    first speaks to servers and completes folders."""

    def __init__(
        self,
        folder: Path,
        *,
        files: Load = load_from_disk,
        encoded: Encoded = lambda *whole: whole,
        **shared: Unpack[Shared],
    ) -> None:
        """`files` says how a server comes to a publication's files."""
        self.folder = folder
        self._folders = PublicationFolders(folder, base=shared["base"], failed=shared["failed"])
        self._encoding, self._files = encoded(self._folders, files)
        self._keys = shared.get("keys") or Keys()
        self._interrupt = shared.get("interrupt", "continue")
        self._timeout_seconds = shared.get("timeout_seconds", INSTALL_SECONDS)
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
