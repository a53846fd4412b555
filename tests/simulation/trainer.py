"""A trainer's life: restore, take, step, publish, save, commit, as trainer/loop.py does it, with deaths.

Its weights are a name, "v<version>.<life that made them>". It keeps two publications, as the real one.
"""

import asyncio
import functools
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import aiohttp
import msgspec
from simulation.checks import check_batch, check_commit
from simulation.deltas import Words, changed_share, words_of, write_delta, write_weights
from simulation.server import SimulatedServer
from simulation.session import SimulatedSession
from simulation.world import Checkpoint, World

from asyncrl.controller.http_service import Requests
from asyncrl.errors import ServerError, Superseded
from asyncrl.journal.writer import JournalError
from asyncrl.records import Batch, PublishOutcome
from asyncrl.serving.delta import DeltaRule
from asyncrl.serving.publication import DELTA, Publication, install
from asyncrl.wire.messages import (
    POLL_SECONDS,
    CommitRequest,
    DrainRequest,
    TakeReply,
    TakeRequest,
    decode_take,
    encode_take,
)

T = TypeVar("T")


class TrainerDied(Exception):
    """As kill -9 of its process."""


class SimulatedService:
    """In place of ControllerService: requests outlive the trainer that sent them, as they do in aiohttp."""

    url = "wire 2"

    def __init__(self, world: World, requests: Requests) -> None:
        self.world = world
        self._requests = requests
        self._tasks: dict[asyncio.Task[object], None] = {}

    async def start(self) -> None:
        """Nothing listens."""

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self, request: TakeRequest) -> TakeReply:
        while True:
            sent = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=TakeRequest)
            reply = await self._exchange(functools.partial(self._requests.take, sent, POLL_SECONDS))
            if reply is not None:
                return decode_take(encode_take(reply))

    async def drain(self, request: DrainRequest) -> None:
        while not await self._exchange(functools.partial(self._requests.drain, request, POLL_SECONDS)):
            continue

    async def commit(self, request: CommitRequest) -> None:
        while not await self._exchange(functools.partial(self._requests.commit, request, POLL_SECONDS)):
            continue
        check_commit(self.world, self.world.connection, request.version)

    async def _exchange(self, call: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self.world.delay(0.002))
        task = asyncio.ensure_future(call())
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        reply = await asyncio.shield(task)
        await asyncio.sleep(self.world.delay(0.002))
        return reply

    def _forget(self, task: "asyncio.Task[object]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.note(f"the controller answers {type(error).__name__}: {error}")
            if not isinstance(error, (JournalError, Superseded)):
                self.world.violate(f"a take, drain or commit failed: {error!r}")


class SimulatedTrainer:
    """One life; `run` returns when the controller has nothing left, or raises TrainerDied."""

    def __init__(self, world: World, service: SimulatedService, servers: dict[str, SimulatedServer]) -> None:
        self.world = world
        self._service = service
        self._servers = servers
        # What aiohttp gives a session that asks for nothing else.
        self._session = SimulatedSession(world, servers, timeout=aiohttp.ClientTimeout(total=300.0))
        crashes = world.plan.trainer_crashes
        self._crash = crashes[world.num_trainer_lives] if world.num_trainer_lives < len(crashes) else None
        self._passes: dict[str, int] = {}
        self.life = world.num_trainer_lives
        world.num_trainer_lives += 1
        self.weights: list[str] = ["v0.base"]
        self.trained: list[Batch] = []
        self._rule = DeltaRule(is_auto=True)
        self._last: Words | None = None
        """Bytes of the version before; none of another life's."""
        self._filler = self.life

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self.world.is_trainer_computing = False
            self._session.cut()

    async def _run(self) -> None:
        world, plan = self.world, self.world.plan
        version = await self._restore()
        saved: int | None = version if world.checkpoints else None
        await self._point("restored")
        publication = self._write(version)
        outcomes: dict[str, PublishOutcome] = {}
        metrics: dict[str, float] | None = None
        while True:
            await self._point("before take")
            request = TakeRequest(version, outcomes, str(publication.folder), metrics)
            while (reply := await self._dying("during take", self._service.take(request))).must_republish:
                world.note(f"trainer {self.life} writes version {version} again")
                publication = self._write(version)
            # From here on the controller knows this trainer's history.
            world.valid_weights = tuple(self.weights)
            world.note(f"trainer {self.life} has the batch of step {version}: {reply.batch is not None}")
            if reply.batch is None or version >= plan.num_steps:
                break
            check_batch(world, reply.batch, version)
            world.is_trainer_computing = True
            self._check_alone()
            await self._point("after take")
            await asyncio.sleep(world.delay(plan.step_seconds))
            self._check_alone()
            version += 1
            self.trained.append(reply.batch)
            self.weights.append(f"v{version}.{self.life}")
            world.valid_weights = tuple(self.weights)
            await self._point("after step")
            publication = self._write(version, may_be_delta=True)
            outcomes = await self._dying("during publish", self._publish(publication, reply.servers))
            metrics = {"step": float(version), "wait_seconds": 0.0, "num_tokens": 1.0}
            await self._point("after publish")
            if version % plan.commit_every == 0 or version == plan.num_steps:
                saved = await self._save(version)
            world.is_trainer_computing = False
        if saved != version:
            await self._save(version)

    def _check_alone(self) -> None:
        """On shared GPUs no server may hold memory now; one whose process is gone holds none."""
        if self.world.plan.is_colocated:
            awake = [s.url for s in self._servers.values() if s.is_up and not s.is_asleep]
            if awake:
                self.world.violate(f"the trainer computes while {awake} hold memory")

    async def _restore(self) -> int:
        await asyncio.sleep(self.world.delay(0.5))
        if not self.world.checkpoints:
            return 0
        checkpoint = self.world.checkpoints[max(self.world.checkpoints)]
        self.weights, self.trained = list(checkpoint.weights), list(checkpoint.trained)
        self.world.note(f"trainer {self.life} restores version {checkpoint.version}")
        await self._service.commit(CommitRequest(checkpoint.version, "folder"))
        return checkpoint.version

    def _write(self, version: int, *, may_be_delta: bool = False) -> Publication:
        folder = self.world.folder / f"v{version}"
        for kept in list(self.world.weights_at):
            if kept not in (str(folder), str(self.world.folder / f"v{version - 1}")):
                del self.world.weights_at[kept]
        folder.mkdir(exist_ok=True)
        is_kept = self.world.plan.has_deltas and self._write_bytes(version, folder, may_be_delta)
        publication = Publication(version, folder, {"w": self.weights[version]}, is_kept=is_kept)
        publication.write_manifest()
        self.world.weights_at[str(folder)] = self.weights[version]
        return publication

    def _write_bytes(self, version: int, folder: Path, may_be_delta: bool) -> bool:
        """Writes the weights, and a delta where the rule wants one; whether servers keep a copy."""
        delta = folder.with_name(folder.name + DELTA)
        shutil.rmtree(delta, ignore_errors=True)
        self._filler += self.world.rng.random() < 0.2
        words = words_of(self.weights[version], self._filler)
        last, self._last = self._last, words
        if self._rule.sends_delta(changed_share(last, words) if may_be_delta and last is not None else None):
            assert last is not None
            write_delta(delta, last, words, version)
            self.world.reached.add("a delta")
        write_weights(folder, words)
        return self._rule.is_kept()

    async def _publish(self, publication: Publication, urls: list[str]) -> dict[str, PublishOutcome]:
        if self.world.plan.interrupt == "drain":
            await self._service.drain(DrainRequest(publication.version))
        self.world.note(f"trainer {self.life} publishes {publication.digests['w']} to {urls}")
        outcomes = await asyncio.gather(*(self._install_on(url, publication) for url in urls))
        return dict(zip(urls, outcomes, strict=True))

    async def _install_on(self, url: str, publication: Publication) -> PublishOutcome:
        try:
            found = await install(self._session, url, publication, interrupt=self.world.plan.interrupt)
        except ServerError as error:
            if "DeltaRefused" in str(error):
                self.world.violate(f"{url} got no whole version for a delta that it refused")
            return PublishOutcome(False, 0.0, str(error))
        if found.refusals:
            self.world.reached.add("a delta that is healed")
            if self.world.plan.is_calm():
                self.world.violate(f"{url} refused a delta, though nothing went wrong: {found.refusals}")
        return PublishOutcome(True, 0.0)

    async def _save(self, version: int) -> int:
        await asyncio.sleep(self.world.delay(0.1))
        checkpoint = Checkpoint(version, tuple(self.weights), tuple(self.trained))
        self.world.checkpoints[version] = checkpoint
        await self._point("after save")
        await self._service.commit(CommitRequest(version, "folder"))
        await self._point("after commit")
        return version

    async def _point(self, name: str) -> None:
        if self._is_due(name):
            await self._end()

    def _is_due(self, name: str) -> bool:
        self._passes[name] = self._passes.get(name, 0) + 1
        if self._crash is None or self._crash[0] != name or abs(self._crash[1]) != self._passes[name]:
            return False
        self.world.note(f"trainer {self.life} {'dies' if self._crash[1] > 0 else 'hangs'}: {name}")
        return True

    async def _end(self) -> NoReturn:
        """Dies, or hangs until somebody kills it."""
        assert self._crash is not None
        if self._crash[1] < 0:
            await asyncio.Event().wait()
        raise TrainerDied

    async def _dying(self, name: str, work: Awaitable[T]) -> T:
        """`work`, or death somewhere within it."""
        if not self._is_due(name):
            return await work
        try:
            async with asyncio.timeout(self.world.delay(0.1)):
                await work
        except TimeoutError:
            pass
        await self._end()
