"""A hand-written trainer: takes, publishes, commits over the real wires; its weights are a number."""

from pathlib import Path

import aiohttp
import msgspec

from asyncrl.errors import ServerError
from asyncrl.records import Batch, PublishOutcome, TrainedTokens
from asyncrl.serving.publication import Publication, install
from asyncrl.wire.messages import (
    COMMIT_PATH,
    DRAIN_PATH,
    TAKE_PATH,
    CommitRequest,
    DrainRequest,
    TakeReply,
    TakeRequest,
    decode_take,
)


class FakeTrainer:
    """Remembers its batches; `commit_every` steps it says that a checkpoint is durable."""

    def __init__(
        self, url: str, folder: Path, *, version: int = 0, commit_every: int = 2, is_draining: bool = False
    ) -> None:
        self.url = url
        self.folder = folder
        self.version = version
        self.commit_every = commit_every
        self.is_draining = is_draining
        """Whether it asks the controller to drain the servers before each publish."""
        self.damages: set[int] = set()
        """Versions whose publication is damaged when it is written first."""
        self.num_republished = 0
        self.batches: list[Batch] = []
        self.heldout: dict[int, float] = {}
        """Accuracies by version, as the last reply told them."""

    async def run(self, *, num_steps: int | None = None) -> None:
        """Until the controller ends the run, or for `num_steps` steps as if it were killed then."""
        outcomes: dict[str, PublishOutcome] = {}
        metrics: dict[str, float] | None = None
        tokens: list[TrainedTokens] = []
        async with aiohttp.ClientSession() as session:
            publication = self._publish()
            for done in range(1_000_000):
                if done == num_steps:
                    return
                request = TakeRequest(self.version, outcomes, str(publication.folder), metrics, tokens)
                while (reply := await self._take(session, request)).must_republish:
                    self.num_republished += 1
                    publication = self._publish()
                self.heldout = reply.heldout
                if reply.batch is None:
                    await self._commit(session)
                    return
                self.batches.append(reply.batch)
                self.version += 1
                publication = self._publish()
                if self.is_draining:
                    await self._drain(session)
                outcomes = {url: await _install(session, url, publication) for url in reply.servers}
                first, size = reply.batch.sequences[0], len(reply.batch.sequences[0].response_tokens)
                tokens = [TrainedTokens(first.sequence_id, bytes(2 * size), bytes(2 * size))]
                metrics = {"step": float(self.version), "wait_seconds": 0.0, "num_tokens": 1.0}
                if self.version % self.commit_every == 0:
                    await self._commit(session)

    def _publish(self) -> Publication:
        folder = self.folder / f"v{self.version}"
        folder.mkdir(parents=True, exist_ok=True)
        publication = Publication(self.version, folder, {"weight": f"{self.version:016x}"})
        publication.write_manifest()
        (folder / "damaged").unlink(missing_ok=True)
        if self.version in self.damages:
            (folder / "damaged").touch()
            self.damages.discard(self.version)
        return publication

    async def _take(self, session: aiohttp.ClientSession, request: TakeRequest) -> TakeReply:
        while True:
            async with session.post(self.url + TAKE_PATH, data=msgspec.msgpack.encode(request)) as response:
                body = await response.read()
                assert response.status in (200, 204), body
                if response.status == 200:
                    return decode_take(body)

    async def _drain(self, session: aiohttp.ClientSession) -> None:
        body, status = msgspec.msgpack.encode(DrainRequest(self.version)), 204
        while status == 204:
            async with session.post(self.url + DRAIN_PATH, data=body) as response:
                status = response.status
                assert status in (200, 204), await response.text()

    async def _commit(self, session: aiohttp.ClientSession) -> None:
        await self._send_commit(session, CommitRequest(self.version, str(self.folder)))

    async def _send_commit(self, session: aiohttp.ClientSession, request: CommitRequest) -> None:
        async with session.post(self.url + COMMIT_PATH, data=msgspec.msgpack.encode(request)) as response:
            assert response.status == 200, await response.text()


async def _install(session: aiohttp.ClientSession, url: str, publication: Publication) -> PublishOutcome:
    try:
        await install(session, url, publication)
    except ServerError as error:
        return PublishOutcome(False, 0.0, str(error))
    return PublishOutcome(True, 0.0)
