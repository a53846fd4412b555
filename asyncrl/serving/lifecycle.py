"""The life of one rollout server, from its start until it has left or is given up.

Longer than other files: the states and everything that moves a server between them are read together.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import aiohttp

from asyncrl.errors import ServerError, WeightMismatch
from asyncrl.loops.task_group import end_tasks
from asyncrl.loops.waits import Waits
from asyncrl.records import PolicyVersion
from asyncrl.serving.publication import Publication
from asyncrl.serving.server import Server, ServerState
from asyncrl.serving.sglang import control, health
from asyncrl.serving.weight_owner import WeightOwner

log = logging.getLogger(__name__)

MAX_RESTARTS = 5
"""Restarts of one server in a row, without a publish in between that it took, before the run gives it up."""
REPUBLISH_SECONDS = 30.0
"""Longest wait for a trainer that is not in a step to write a publication again."""
MAX_MISSED = 2
"""Joins that may be too late before the next batch waits for the one under way."""
SILENCE_SECONDS = 300.0
"""Longest silence of a server with requests, by default."""


class ServerLifecycle:
    """Owns every change of a server's state. A method reports what happened and sets the next state at once,
    so that no request is routed by an old one; the loop does what that state asks for, one thing at a time.

        starting
           | start            installed, digests equal              a stream broke
           v     -------------------------------------> serving --------------------> suspect
         stale   <-------------------------------------         <-------------------- (serves on)
          | ^       missed a publish, other weights        |     holds its weights       |
          | |                                              |                             |
          | | is ready                                     | silent, or the              | does not
          | |                                              | publish failed              | answer
          v | an install failed                            v                             v
        restarting <----------------------------------------------------------------------
           |
           | MAX_RESTARTS in a row
           v
          dead

        any state -- removed --> leaving: its streams resume elsewhere, then its process ends

        serving, suspect, stale -- the trainer needs the GPUs --> sleeping -- announced --> stale

    A suspect that holds other weights is stale too: its process was restarted from outside.
    When a server dies in the middle of a chunk, the stream breaks and its reader calls `suspect`. The loop
    asks the server for its weight version (`_question`). Without an answer it leaves service (`fail`), is
    restarted (`_restart_process`), joins with the latest publication (`_join`) and serves with a new salt.
    Without a trainer it joins with the weights that its new process loaded (`serve_fixed`).
    When a server hangs, no stream breaks. While it serves, the loop watches its pulse (`_guard`).
    """

    def __init__(
        self,
        server: Server,
        owner: WeightOwner,
        waits: Waits,
        *,
        session: aiohttp.ClientSession,
        restart: Callable[[str], Awaitable[None]],
        stop: Callable[[str], Awaitable[None]],
        install: Callable[[str, Publication], Awaitable[None]],
        longest_tokens: int = 0,
        silence_seconds: float = SILENCE_SECONDS,
        predecessor: "ServerLifecycle | None" = None,
    ) -> None:
        """`restart`, `stop` and `install` act on the server at a URL; see `Fleet`, also for `longest_tokens`
        and `silence_seconds`. `predecessor` is a life of the same URL that ends first; its process is then
        started again."""
        self.server = server
        self._owner = owner
        self._waits = waits
        self._session = session
        self._restart = restart
        self._stop = stop
        self._install = install
        self._longest_tokens = longest_tokens
        self._silence_seconds = silence_seconds
        self._predecessor = predecessor
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Set by each change of state."""
        self._is_installing = False
        self._num_missed = 0
        """Joins in a row that were too late: training published meanwhile."""
        self._num_mismatches = 0
        """Publications in a row whose loaded digests were not the published ones."""
        self._has_ended = False
        """It left, and so has its process."""
        self._is_announced_change = False
        """It was reported as left or added, and is reported again when it serves."""
        self._fixed_version: PolicyVersion | None = None
        """Version of the weights that its process starts with, where no trainer publishes any."""

    # What happens to the server

    def start(self) -> None:
        """It joins as soon as it is ready and the first publication is known."""
        if self.server.state is ServerState.STARTING:
            self._move(ServerState.STALE, self.server.reason)
        self._run_loop()

    def serve_fixed(self, version: PolicyVersion) -> None:
        """It serves the weights it was started with, as `version`."""
        self.server.version = self._fixed_version = version
        self._move(ServerState.SERVING)
        self._run_loop()

    def added(self) -> None:
        """It was added to a running fleet."""
        self._is_announced_change = True
        log.warning("server %s was added; it serves once its weights are verified", self.server.url)
        self.start()

    def took_publish(self, version: PolicyVersion) -> None:
        """The trainer installed and verified `version` on it."""
        self.server.version, self.server.num_restarts, self._num_missed = version, 0, 0
        # A serving one is asked for its passes again.
        self._changed.set()

    def missed_publish(self) -> None:
        """The trainer did not reach it, or died while it published to it."""
        self._num_missed += 1
        self.verify_again("missed a publish")

    def verify_again(self, why: str, *, is_routine: bool = False) -> None:
        """Its weights are to be installed and compared before it serves on. A server that restarts, leaves or
        is dead joins with the latest publication anyway, or never."""
        if self.server.is_serving() or self.server.state in (ServerState.STARTING, ServerState.STALE):
            level = logging.INFO if is_routine else logging.WARNING
            log.log(level, "server %s joins again: %s", self.server.url, why)
            self._num_mismatches = 0
            self._move(ServerState.STALE, why)
            self._run_loop()

    async def suspect(self, error: ServerError) -> None:
        """A stream of this server broke. Returns once it is known whether it serves on.

        It is restarted unless it answers that it is ready, and verified again unless it holds the weights
        that it should: its process may have been restarted from outside.
        """
        if self.server.state is ServerState.SERVING:
            self._move(ServerState.SUSPECT, str(error))
        await self._waits.wait_until(
            lambda: self.server.state is not ServerState.SUSPECT,
            owner="a broken stream",
            blocker=f"the answer of {self.server.url}",
        )

    def fail(self, why: str) -> None:
        """Takes a serving server out of service and restarts it; what streams from it breaks off now."""
        if self.server.is_serving():
            log.warning("server %s leaves: %s", self.server.url, why)
            self._is_announced_change = True
            self._move(ServerState.RESTARTING, why)

    def leave(self) -> None:
        """It gets nothing new; its process ends once nothing streams from it."""
        self._move(ServerState.LEAVING, "removed")

    def is_late_joiner(self) -> bool:
        """Whether a publication is on its way to it and it was too late before."""
        return self._is_installing and self._num_missed >= MAX_MISSED

    async def close(self) -> None:
        """Ends the loop, not the server."""
        if self._predecessor is not None:
            await self._predecessor.close()
        if self._task is not None:
            await end_tasks(self._task)

    def sleep(self) -> None:
        """Its memory is needed: what streams from it ends, to resume from its prefix. Until `wake`."""
        if self.server.is_serving() or self.server.state is ServerState.STALE:
            self._move(ServerState.SLEEPING, "the trainer has its GPUs")

    def wake(self) -> None:
        """It has its GPUs again, and joins with what was announced."""
        if self.server.state is ServerState.SLEEPING:
            self._move(ServerState.STALE, "wakes up")

    def holds_memory(self) -> bool:
        """Whether its process may hold weights or cache."""
        if self.server.state is ServerState.LEAVING:
            return self._task is not None and not self._has_ended
        return self.server.state is not ServerState.DEAD and not self.server.is_asleep

    # What each state asks for

    def _run_loop(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"server {self.server.url}")

    async def _run(self) -> None:
        if self._predecessor is not None:
            await self._wait_for(self._predecessor)
        while self.server.state is not ServerState.LEAVING:
            self._changed.clear()
            match self.server.state:
                case ServerState.STALE:
                    await self._join()
                case ServerState.SERVING:
                    await self._guard()
                case ServerState.SUSPECT:
                    await self._question()
                case ServerState.RESTARTING:
                    await self._restart_process()
                case ServerState.SLEEPING if not self.server.is_asleep:
                    await self._fall_asleep()
                case _:
                    # Not a wait that is listed: nothing is owed to a server that was given up.
                    await self._changed.wait()
        await self._end_process()

    def _move(self, state: ServerState, reason: str = "") -> None:
        self.server.state, self.server.reason = state, reason
        if state in (ServerState.RESTARTING, ServerState.DEAD):
            # An external one that hangs breaks no connection.
            self.server.heartbeat.cut_streams(reason)
        self._changed.set()
        self._waits.notify()

    async def _wait_for(self, predecessor: "ServerLifecycle") -> None:
        predecessor.leave()
        if predecessor._task is not None:
            with self._waits.waiting(f"server {self.server.url}", "the end of its process, to restart it"):
                await asyncio.wait([predecessor._task])
        self._predecessor = None
        if self.server.state is ServerState.STALE:
            self._move(ServerState.RESTARTING, self.server.reason)

    async def _join(self) -> None:
        """Installs the latest publication; the server serves when its digests are the published ones."""
        if self._fixed_version is not None and not self._owner.is_published():
            return await self._join_fixed(self._fixed_version)
        server, owner = self.server, self._owner
        await self._waits.wait_until(
            lambda: owner.may_install(server.url) or server.state is not ServerState.STALE,
            owner=f"server {server.url}",
            blocker="the trainer's publication",
        )
        await owner.until_written(
            f"server {server.url}", unless=lambda: server.state is not ServerState.STALE
        )
        if server.state is not ServerState.STALE or not owner.may_install(server.url):
            return
        publication, was_asleep = owner.published(), server.is_asleep
        error = await self._try_install(publication)
        if server.state is not ServerState.STALE:
            return
        if error is not None:
            return await self._join_failed(publication, error)
        if not owner.is_latest(publication):
            # Another version was announced meanwhile: the loop joins again.
            self._num_missed += 1
            return
        server.version = publication.version
        server.num_joins += 1
        if was_asleep:
            self.took_publish(publication.version)
        self._num_mismatches = 0
        self._serve(f"version {publication.version}, digests verified")

    async def _join_fixed(self, version: PolicyVersion) -> None:
        """Its process has loaded the weights itself, and no publication comes: its own word must do."""
        server = self.server
        label = await health.weight_version(self._session, server.url)
        if server.state is not ServerState.STALE:
            return
        if label != str(version):
            held = "does not answer" if label is None else f"holds weight version {label}, not {version}"
            return self._move(ServerState.RESTARTING, f"{server.url} {held}")
        server.num_joins += 1
        self._serve("again, with the weights that it was started with")

    def _serve(self, what: str) -> None:
        level = logging.WARNING if self._is_announced_change else logging.INFO
        self._is_announced_change = False
        log.log(level, "server %s serves %s", self.server.url, what)
        self._move(ServerState.SERVING)

    async def _try_install(self, publication: Publication) -> ServerError | None:
        url = self.server.url
        self._is_installing = True
        try:
            with self._waits.waiting(f"server {url}", f"the install of version {publication.version}"):
                if self.server.is_asleep:
                    # Before it is asked: without an answer it may hold memory.
                    self.server.is_asleep = False
                    await control.wake(self._session, url)
                await self._install(url, publication)
                await self._measure()
        except ServerError as error:
            return error
        finally:
            self._is_installing = False
            self._waits.notify()
        return None

    async def _measure(self) -> None:
        """Reads what it takes at once. Raises ServerError where that is less than one trajectory needs."""
        found = await health.capacity(self._session, self.server.url)
        if not found.holds(self._longest_tokens):
            raise ServerError(
                f"{self.server.url} holds {found.cache_tokens} tokens in its cache, but a prompt and its "
                f"response may have {self._longest_tokens}. Raise serving.max_total_tokens or lower "
                f"rollout.max_new_tokens."
            )
        self.server.capacity = found

    async def _join_failed(self, publication: Publication, error: ServerError) -> None:
        """Other bytes than were published: first the files are doubted, then the server, which is restarted.

        So is one whose files are not written again: at the end of a run there is no trainer any more.
        """
        server, owner = self.server, self._owner
        server.reason = str(error)
        log.warning("server %s does not join: %s", server.url, error)
        if not isinstance(error, WeightMismatch) or self._num_mismatches > 0:
            return self._move(ServerState.RESTARTING, server.reason)
        self._num_mismatches += 1
        owner.ask_to_rewrite(publication)
        while owner.is_latest(publication) and server.state is ServerState.STALE:
            is_over = await self._waits.wait_until(
                lambda: not owner.is_latest(publication) or server.state is not ServerState.STALE,
                owner=f"server {server.url}",
                blocker="the trainer's publication, written again",
                timeout_seconds=REPUBLISH_SECONDS,
            )
            # In the middle of a step the trainer cannot answer; its next publication comes for certain.
            if not is_over and not owner.is_with_trainer:
                self._move(ServerState.RESTARTING, server.reason)

    async def _guard(self) -> None:
        """Until its state changes, or it took a version."""
        counting = asyncio.create_task(self._count_passes(), name=f"passes of {self.server.url}")
        try:
            while not self._changed.is_set():
                if await self._has_fallen_silent():
                    self.fail(self._silence())
        finally:
            await end_tasks(counting)

    async def _count_passes(self) -> None:
        """Once per version. Only plans need them, and whether it works is judged elsewhere."""
        try:
            self.server.count_passes(await health.passes(self._session, self.server.url))
        except ServerError as error:
            log.debug("passes of %s are not known: %s", self.server.url, error)

    async def _has_fallen_silent(self) -> bool:
        """Looks once, when there may be something to see. Half-way into a silence the scheduler is asked: an
        answer is a sign of life. Its front end alone is none, for it may outlive the scheduler."""
        server, limit = self.server, self._silence_seconds
        silence = server.heartbeat.silence_seconds() if server.num_running else 0.0
        patience = 0.5 * limit - silence
        # A wait shorter than the clock resolves would end where it began.
        if patience > 1e-3 * limit:
            await self._change_within(patience)
        elif silence >= limit:
            return True
        elif await health.answers(self._session, server.url, timeout_seconds=limit - silence):
            server.heartbeat.beat()
        else:
            # One that refuses does so at once.
            await self._change_within(0.05 * limit)
        return False

    def _silence(self) -> str:
        silence = self.server.heartbeat.silence_seconds()
        return f"{self.server.url} streamed nothing for {silence:.0f} s and does not answer"

    async def _change_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _question(self) -> None:
        """Asks a server whose stream broke which weights it holds."""
        server = self.server
        label = await health.weight_version(self._session, server.url)
        if server.state is not ServerState.SUSPECT:
            return
        if label is None:
            self.fail(server.reason)
        elif label != str(server.version) and not self._owner.is_handed(server.url):
            why = f"it holds weight version {label}, not {server.version}"
            self.verify_again(why)
            # A request that waits there would begin on keys and values of those weights, under its own salt.
            server.heartbeat.cut_streams(why)
        else:
            self._move(ServerState.SERVING)

    async def _fall_asleep(self) -> None:
        server = self.server
        try:
            with self._waits.waiting(f"server {server.url}", "the end of its streams, to fall asleep"):
                await control.sleep(self._session, server.url)
        except ServerError as error:
            log.warning("server %s does not fall asleep: %s", server.url, error)
            if server.state is not ServerState.LEAVING:
                self._is_announced_change = True
                self._move(ServerState.RESTARTING, str(error))
            return
        server.is_asleep = True
        self._waits.notify()

    async def _restart_process(self) -> None:
        server = self.server
        await self._waits.wait_until(
            lambda: self._owner.may_start_process() or server.state is not ServerState.RESTARTING,
            owner=f"server {server.url}",
            blocker="the trainer, which has its GPUs",
        )
        if server.state is not ServerState.RESTARTING:
            return
        if server.num_restarts == MAX_RESTARTS:
            log.error("server %s is given up after %d restarts: %s", server.url, MAX_RESTARTS, server.reason)
            return self._move(ServerState.DEAD, server.reason)
        server.num_restarts += 1
        try:
            with self._waits.waiting(f"server {server.url}", f"restart {server.num_restarts}"):
                await self._restart(server.url)
                server.is_asleep = False
        except ServerError as error:
            log.warning("restart %d of %s failed: %s", server.num_restarts, server.url, error)
            if server.state is ServerState.RESTARTING:
                server.reason = str(error)
            return
        if server.state is ServerState.RESTARTING:
            self._move(ServerState.STALE, server.reason)

    async def _end_process(self) -> None:
        """Once nothing streams from it and the trainer writes nothing to it."""
        server = self.server
        cutting = asyncio.create_task(self._cut_silent_streams(), name=f"silence of {server.url}")
        try:
            await self._waits.wait_until(
                lambda: not server.num_running and not self._owner.is_handed(server.url),
                owner=f"server {server.url}",
                blocker="its streams and the trainer's publication, before it ends",
            )
        finally:
            await end_tasks(cutting)
        await self._stop(server.url)
        self._has_ended = True
        self._waits.notify()

    async def _cut_silent_streams(self) -> None:
        """Cuts silent streams of a server that leaves, such as an evaluation's; they resume elsewhere."""
        while True:
            # It may be told to leave twice.
            self._changed.clear()
            if await self._has_fallen_silent():
                self.server.heartbeat.cut_streams(self._silence())
                self.server.heartbeat.beat()
