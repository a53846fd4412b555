"""The controller and a trainer that has another disk: what it commits and publishes comes over HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from fakes.controllers import controller_on, make_recipe
from fakes.engine import FakeEngine
from fakes.trainer import FakeTrainer

from asyncrl.run.checkpoints import checkpoint_path, find_newest, write_manifest
from asyncrl.serving.publication import Publication
from asyncrl.system.files import sha256_of
from asyncrl.wire.files.service import FileRoutes, folder_url
from asyncrl.wire.messages import CommitRequest, TakeRequest


class OtherDisk(FakeTrainer):
    """A trainer whose folder the controller does not see."""

    def __init__(self, url: str, folder: Path, files_url: str) -> None:
        super().__init__(url, folder / "publications")
        self.run_folder, self.files_url = folder, files_url

    async def _take(self, session, request):  # type: ignore[no-untyped-def]
        place = folder_url(self.files_url, Path(request.publication_folder), self.run_folder)
        told = TakeRequest(request.version, request.published, place, request.step_metrics)
        return await super()._take(session, told)

    async def _commit(self, session: aiohttp.ClientSession) -> None:
        folder = checkpoint_path(self.run_folder / "checkpoints", self.version)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank-0").write_text(f"weights {self.version}")
        write_manifest(folder, self.version, {"rank-0": sha256_of(folder / "rank-0")})
        await self._send_commit(
            session, CommitRequest(self.version, folder_url(self.files_url, folder, self.run_folder))
        )


@contextlib.asynccontextmanager
async def serving_files(run_folder: Path) -> AsyncIterator[str]:
    """As a `FileServer`, to whoever asks: the fakes show no token."""
    app = web.Application()
    FileRoutes(None, run_folder).add_to(app)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngine]]:
    async with FakeEngine() as first, FakeEngine() as second:
        yield [first, second]


async def test_a_run_trains_with_a_trainer_on_another_disk(engines: list[FakeEngine], tmp_path: Path) -> None:
    """Servers join and evaluations run on copies of publications, and a commit leaves a checkpoint here."""
    rollout, evaluation = engines
    there = tmp_path / "there"
    async with asyncio.timeout(300), controller_on(tmp_path, make_recipe(), [rollout], [evaluation]) as parts:
        controller, notebook = parts
        async with serving_files(there) as url:
            trainer = OtherDisk(controller.queue_url, there, url)
            await controller.run(trainer.run)
        assert [batch.taken_version for batch in trainer.batches] == [0, 1, 2, 3]
        assert {row["when"] for row in notebook.evaluations} == {"before", "during", "after"}
        rows = controller.queue.journal.read("SELECT checkpoint_folder FROM commits WHERE version = 4")
    here = tmp_path / "run" / "checkpoints"
    assert rows == [(str(checkpoint_path(here, 4)),)] and find_newest(here).version == 4


async def test_a_checkpoint_that_cannot_be_copied_is_not_committed(
    engines: list[FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trainer is told and ends; the run does not: it may be the trainer's node that is gone."""
    monkeypatch.setattr("asyncrl.wire.files.fetch.PAUSE_SECONDS", 0.0)
    async with controller_on(tmp_path, make_recipe(), engines[:1]) as (controller, _):
        trainer = OtherDisk(controller.queue_url, tmp_path / "there", "http://127.0.0.1:9")
        async with aiohttp.ClientSession() as session:
            with pytest.raises(AssertionError, match="The checkpoint of version 0 was not copied"):
                await trainer._commit(session)
        assert controller.queue.committed_version == 0 and not controller.context.state.is_over
        await controller.queue.journal.barrier()
        assert controller.queue.journal.read("SELECT * FROM commits") == []


def test_a_publication_elsewhere_is_not_written_until_it_is_here(tmp_path: Path) -> None:
    assert not Publication(3, tmp_path, {}, lambda: None).is_written()
