"""The servers' side of a broadcast, over HTTP, while the trainer's ranks send: a thread with an event loop.

Each server is paused, joins the group when it is a new one, is asked for one bucket after the other, and
serves when its digests are the trainer's. Owns the session. The first rank has one.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.records import PublishOutcome
from asyncrl.serving.publication import INSTALL_SECONDS, Load, Publication, install
from asyncrl.serving.sglang import health, hooks, http, weights
from asyncrl.serving.sglang.hooks import Engine
from asyncrl.trainer.publishing.host_weights import Bucket
from asyncrl.trainer.ranks.update_group import Address
from asyncrl.wire.access import Keys

READY_SECONDS = 30.0
"""Longest wait for the other servers once one is paused and ready to receive."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """How the servers that are ready receive: the groups, one per stage, and the servers' ranks in them."""

    addresses: Mapping[int, Address]
    """By stage."""
    first_ranks: Mapping[str, int]
    """Server URL -> its first rank in the groups."""
    size: int
    """Ranks in each group, the trainer's included."""
    backend: str
    is_new: bool
    """Whether they must join first. They are then sent what no step changes, too."""


@dataclass(slots=True)
class Failure:
    """Why a server did not take a version, and whether a group of its own could help."""

    reason: str
    is_of_sending: bool


@dataclass(slots=True)
class Round:
    """One version on its way to some servers. The events are set from the trainer's own thread."""

    publication: Publication
    urls: Sequence[str]
    plan: Sequence[Bucket]
    ready: dict[str, Engine] = field(default_factory=dict)
    """Servers that are paused and wait for a bucket."""
    failures: dict[str, Failure] = field(default_factory=dict)
    """In their order."""
    seconds: dict[str, float] = field(default_factory=dict)
    assigned: "asyncio.Future[RankAssignment]" = field(default_factory=asyncio.Future)
    digested: asyncio.Event = field(default_factory=asyncio.Event)
    """The digests of the publication are complete, or sending has failed."""
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)


class Receivers:
    """Calls from the trainer's thread; everything else happens in the loop's."""

    def __init__(self, keys: Keys, *, interrupt: str, timeout_seconds: float = INSTALL_SECONDS) -> None:
        """A server that has not taken a version within `timeout_seconds` has failed."""
        self._timeout_seconds = timeout_seconds
        self._interrupt = interrupt
        self._keys = keys
        self._session: aiohttp.ClientSession | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="receivers", daemon=True)
        self._thread.start()
        self._round: Round | None = None
        self._running: Future[None] | None = None
        self._joined: dict[str, list[str]] = {}
        """Server URL -> names of the groups that it is in."""

    def begin(
        self, publication: Publication, urls: Sequence[str], plan: Sequence[Bucket]
    ) -> dict[str, Engine]:
        """Pauses the servers; returns when each is ready to receive or has failed. By URL."""
        self._round = self._call(self._new_round(publication, urls, plan))
        self._running = asyncio.run_coroutine_threadsafe(self._run(self._round), self._loop)
        return self._call(self._until_ready(self._round))

    def assign(self, assignment: RankAssignment) -> None:
        """Tells the servers that are ready how they receive."""
        self._loop.call_soon_threadsafe(self._current().assigned.set_result, assignment)

    def digested(self) -> None:
        """All buckets were sent, or cannot be: the publication's digests are what is to be compared."""
        self._loop.call_soon_threadsafe(self._current().digested.set)

    def finish(self) -> tuple[dict[str, PublishOutcome], list[list[str]]]:
        """Outcomes by URL, and the servers that failed while weights were sent and still answer, in the
        groups in which they may take the version after all.

        One that is gone took the others along; else the first to fail did, and is alone. So one bad server
        among any number costs one more round, or two.
        """
        assert self._running is not None
        self._running.result()
        round_ = self._current()
        outcomes = {url: _outcome(round_, url) for url in round_.urls}
        return outcomes, _groups(round_, self._call(self._answering(round_)))

    def close(self) -> None:
        if self._session is not None:
            self._call(self._end(self._session))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _current(self) -> Round:
        assert self._round is not None, "begin comes first"
        return self._round

    async def _new_round(
        self, publication: Publication, urls: Sequence[str], plan: Sequence[Bucket]
    ) -> Round:
        self._session = self._session or http.new_session(self._keys)
        return Round(publication, urls, plan)

    async def _run(self, round_: Round) -> None:
        await asyncio.gather(*(self._install(round_, url) for url in round_.urls))

    async def _install(self, round_: Round, url: str) -> None:
        assert self._session is not None
        begin = time.perf_counter()
        try:
            await install(
                self._session,
                url,
                round_.publication,
                load=_Reception(self._receive, round_),
                interrupt=self._interrupt,
                timeout_seconds=self._timeout_seconds,
            )
        except ServerError as error:
            is_of_sending = url in round_.ready and not isinstance(error, WeightMismatch)
            round_.failures[url] = Failure(str(error), is_of_sending)
            if is_of_sending:
                # Closes its connections: servers that wait for it, or behind it, fail at once.
                await self._leave(self._session, url)
        round_.seconds[url] = time.perf_counter() - begin
        async with round_.arrived:
            round_.arrived.notify_all()

    async def _receive(self, session: aiohttp.ClientSession, url: str, round_: Round) -> None:
        engine = await hooks.check_hooks(session, url)
        await weights.begin_weight_update(session, url)
        async with round_.arrived:
            round_.ready[url] = engine
            round_.arrived.notify_all()
        assignment = await asyncio.shield(round_.assigned)
        if url not in assignment.first_ranks:
            raise ServerError(f"{url} was ready {READY_SECONDS:g} s after the first server")
        if assignment.is_new:
            await self._leave(session, url)
            self._joined[url] = [address.name for address in assignment.addresses.values()]
            # One stage after the other, in the same order at all servers: each joins one group at a time.
            for address in assignment.addresses.values():
                await _join(session, url, assignment, address)
        plan = [bucket for bucket in round_.plan if assignment.is_new or not bucket.is_fixed]
        for number, bucket in enumerate(plan, 1):
            sent = weights.Broadcast(
                group=assignment.addresses[bucket.stage].name,
                names=[tensor.name for tensor in bucket.tensors],
                dtypes=[str(tensor.dtype).removeprefix("torch.") for tensor in bucket.tensors],
                shapes=[tensor.shape for tensor in bucket.tensors],
            )
            version = round_.publication.version if number == len(plan) else None
            await weights.update_weights_from_distributed(session, url, sent, version)
        await weights.end_weight_update(session, url)
        await round_.digested.wait()

    async def _until_ready(self, round_: Round) -> dict[str, Engine]:
        async def until(condition: Callable[[], bool]) -> None:
            async with round_.arrived:
                await round_.arrived.wait_for(condition)

        def is_settled() -> bool:
            return len(round_.ready.keys() | round_.failures.keys()) == len(round_.urls)

        await until(lambda: bool(round_.ready) or is_settled())
        # One that hangs must not keep the others paused.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until(is_settled), READY_SECONDS)
        return {url: engine for url, engine in round_.ready.items() if url not in round_.failures}

    async def _answering(self, round_: Round) -> list[str]:
        assert self._session is not None
        failed = [url for url, failure in round_.failures.items() if failure.is_of_sending]
        # They are paused, and so not ready.
        answers = await asyncio.gather(
            *(health.answers(self._session, url, timeout_seconds=http.PROBE_SECONDS) for url in failed)
        )
        return [url for url, answers_now in zip(failed, answers, strict=True) if answers_now]

    async def _end(self, session: aiohttp.ClientSession) -> None:
        await asyncio.gather(*(self._leave(session, url) for url in list(self._joined)))
        await session.close()

    async def _leave(self, session: aiohttp.ClientSession, url: str) -> None:
        """Ends the server's part in earlier groups. It may be gone, or another process by now."""
        for name in self._joined.pop(url, ()):
            with contextlib.suppress(ServerError):
                await weights.destroy_weights_update_group(session, url, name)


@dataclass(frozen=True, slots=True)
class _Reception(Load):
    receive: Callable[[aiohttp.ClientSession, str, Round], Awaitable[None]]
    round: Round

    async def prepare(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        """Nothing: the weights are in the trainer's memory."""

    async def __call__(self, session: aiohttp.ClientSession, url: str, publication: Publication) -> None:
        await self.receive(session, url, self.round)


async def _join(
    session: aiohttp.ClientSession, url: str, assignment: RankAssignment, address: Address
) -> None:
    seat = weights.GroupSeat(
        name=address.name,
        host=address.host,
        port=address.port,
        first_rank=assignment.first_ranks[url],
        size=assignment.size,
        backend=assignment.backend,
    )
    await weights.init_weights_update_group(session, url, seat)


def _groups(round_: Round, answering: list[str]) -> list[list[str]]:
    failed = [url for url, failure in round_.failures.items() if failure.is_of_sending]
    if len(answering) < len(failed) or len(answering) < 2:
        # Those that are gone took the others along.
        return [answering] if answering else []
    return [[url for url in answering if url != failed[0]], failed[:1]]


def _outcome(round_: Round, url: str) -> PublishOutcome:
    failure = round_.failures.get(url)
    return PublishOutcome(failure is None, round_.seconds[url], "" if failure is None else failure.reason)
