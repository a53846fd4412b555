"""One rollout server as known here: its load, its signs of life, and its states, which its lifecycle alone
changes.

What is done in each state is elsewhere: see `ServerLoop`.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum

from asyncrl.errors import ServerError
from asyncrl.loops import Waits, now_seconds
from asyncrl.records import PolicyVersion
from asyncrl.serving.sglang.health import Capacity

log = logging.getLogger(__name__)


class Heartbeat:
    """Signs of life of one server, which all streams from it share: one alone says little.

    A request gets no token while it waits in its server's queue, after the server took its cache back for
    others, and during a weight update. A server is silent when no stream brings anything and its scheduler
    does not answer either; `Probe` asks it, and leaves one that stays silent.
    """

    def __init__(self) -> None:
        self._seen_seconds = 0.0
        self._limits: dict[asyncio.Timeout, str | None] = {}
        """Time limit of each stream -> why it was cut off."""

    def beat(self) -> None:
        """The server showed that it works."""
        self._seen_seconds = now_seconds()

    def silence_seconds(self) -> float:
        return now_seconds() - self._seen_seconds

    @contextlib.asynccontextmanager
    async def streaming(self, limit: asyncio.Timeout | None = None) -> AsyncIterator[None]:
        """Around a stream. Raises TimeoutError when `limit` passes, ServerError when the server is left."""
        limit = limit or asyncio.timeout(None)
        why: str | None = None
        try:
            async with limit:
                self._limits[limit] = None
                try:
                    yield
                finally:
                    why = self._limits.pop(limit)
        except TimeoutError:
            if why is not None:
                raise ServerError(why) from None
            raise

    def cut_streams(self, why: str) -> None:
        """Ends what streams, now: a server that hangs breaks no connection."""
        now = now_seconds()
        for limit in self._limits:
            due = limit.when()
            # One that its own client has cut is over.
            if due is None or due > now:
                self._limits[limit] = why
                limit.reschedule(now)


class ServerState(StrEnum):
    """`ServerLifecycle` says how one leads to the next."""

    STARTING = "starting"
    """The run has not begun."""
    STALE = "stale"
    """Its weights are not verified to be the latest."""
    SERVING = "serving"
    SUSPECT = "suspect"
    """A stream broke: it serves on while it is asked whether it is ready."""
    RESTARTING = "restarting"
    SLEEPING = "sleeping"
    """The trainer has its GPUs (placement.colocated): it joins again when they are handed back."""
    LEAVING = "leaving"
    """It was removed: gets nothing new, and its streams resume elsewhere."""
    DEAD = "dead"
    """Given up."""


@dataclass(slots=True, eq=False)
class Server:
    url: str
    state: ServerState = ServerState.STARTING
    version: PolicyVersion | None = None
    """The newest one that the trainer announced and this server took; what it holds is this or newer."""
    num_running: int = 0
    busy_seconds: float = 0.0
    busy_since_seconds: float = 0.0
    num_restarts: int = 0
    """Since it last took a publish."""
    num_process_restarts: int = 0
    """Restarts of its process in this start of the run."""
    num_joins: int = 0
    num_tokens: int = 0
    """Streamed from it."""
    capacity: Capacity | None = None
    """None until it has joined, and where it was not asked."""
    expected_tokens: int = 0
    """Tokens that its requests will hold of the cache before they end, shared prompts counted once."""
    held_tokens: int = 0
    """Tokens that they hold now, as far as these have arrived."""
    num_retractions: int = 0
    """How often it took a request's cache back for others, counted as requests end."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    stream_seconds: float = 0.0
    """Requests running, times seconds."""
    squared_stream_seconds: float = 0.0
    """Requests running, squared, times seconds: over `stream_seconds`, how many ran while one of them ran."""
    counted_seconds: float = 0.0
    """When `stream_seconds` was last brought up to date, as `now_seconds`."""
    is_asleep: bool = False
    """Its process holds neither weights nor cache."""
    reason: str = "starting"
    """Why it does not serve."""

    def is_serving(self) -> bool:
        return self.state in (ServerState.SERVING, ServerState.SUSPECT)

    def is_leaving(self) -> bool:
        return self.state is ServerState.LEAVING

    def is_staying(self) -> bool:
        """Whether it serves or may come to."""
        return self.state not in (ServerState.DEAD, ServerState.LEAVING)

    def begin(self, num_requests: int) -> None:
        """Requests start to stream."""
        if self.num_running == 0:
            self.busy_since_seconds = now_seconds()
            self.heartbeat.beat()
        self.count_streams()
        self.num_running += num_requests

    def end(self, num_requests: int) -> None:
        """Requests have ended."""
        self.count_streams()
        self.num_running -= num_requests
        if self.num_running == 0:
            self.busy_seconds += now_seconds() - self.busy_since_seconds

    def count_tokens(self, num_tokens: int) -> None:
        """It streamed this many more."""
        self.num_tokens += num_tokens
        self.heartbeat.beat()

    def expect(self, num_tokens: int, *, held: int) -> None:
        """Its requests will hold this many more tokens, or fewer, and hold `held` more now."""
        self.expected_tokens += num_tokens
        self.held_tokens += held

    def busy_so_far(self) -> float:
        """Seconds, up to now, in which at least one request was running."""
        return self.busy_seconds + (now_seconds() - self.busy_since_seconds if self.num_running else 0.0)

    def count_streams(self) -> None:
        """Brings both sums of stream seconds up to now; before each change of `num_running`."""
        now = now_seconds()
        streamed = self.num_running * (now - self.counted_seconds)
        self.stream_seconds += streamed
        self.squared_stream_seconds += self.num_running * streamed
        self.counted_seconds = now


class ServerLifecycle:
    """Owns every change of a server's state. A method reports what happened and sets the next state at once,
    so that no request is routed by an old one; `ServerLoop` does what that state asks for.

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
    asks the server for its weight version (`Probe.question`). Without an answer it leaves service (`fail`),
    is restarted (`ServerProcess.restart`), joins with the latest publication (`Join.run`) and serves with a
    new salt. Without a trainer it joins with the weights that its new process loaded (`serve_fixed`).
    When a server hangs, no stream breaks. While it serves, the loop watches its pulse (`Probe.guard`).
    """

    def __init__(self, server: Server, waits: Waits) -> None:
        self.server = server
        self._waits = waits
        self.changed = asyncio.Event()
        """Set by each change of state, and when a serving server took a publish."""
        self.num_missed = 0
        """Joins in a row that were too late: training published meanwhile."""
        self.num_mismatches = 0
        """Publications in a row whose loaded digests were not the published ones."""
        self.fixed_version: PolicyVersion | None = None
        """Version of the weights that its process starts with, where no trainer publishes any."""
        self._is_announced_change = False
        """It was reported as left or added, and is reported again when it serves."""

    # Reports from outside

    def start(self) -> None:
        """It joins as soon as it is ready and the first publication is known."""
        if self.server.state is ServerState.STARTING:
            self._move(ServerState.STALE, self.server.reason)

    def serve_fixed(self, version: PolicyVersion) -> None:
        """It serves the weights it was started with, as `version`."""
        self.server.version = self.fixed_version = version
        self._move(ServerState.SERVING)

    def announce_addition(self) -> None:
        """It was added to a running fleet."""
        self._is_announced_change = True
        log.warning("server %s was added; it serves once its weights are verified", self.server.url)

    def took_publish(self, version: PolicyVersion) -> None:
        """The trainer installed and verified `version` on it."""
        self.server.version, self.server.num_restarts, self.num_missed = version, 0, 0

    def missed_publish(self) -> None:
        """The trainer did not reach it, or died while it published to it."""
        self.num_missed += 1
        self.verify_again("missed a publish")

    def verify_again(self, why: str, *, is_routine: bool = False) -> None:
        """Its weights are to be installed and compared before it serves on. A server that restarts, leaves or
        is dead joins with the latest publication anyway, or never."""
        if self.server.is_serving() or self.server.state in (ServerState.STARTING, ServerState.STALE):
            level = logging.INFO if is_routine else logging.WARNING
            log.log(level, "server %s joins again: %s", self.server.url, why)
            self.num_mismatches = 0
            self._move(ServerState.STALE, why)

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

    def sleep(self) -> None:
        """Its memory is needed: what streams from it ends, to resume from its prefix. Until `wake`."""
        if self.server.is_serving() or self.server.state is ServerState.STALE:
            self._move(ServerState.SLEEPING, "the trainer has its GPUs")

    def wake(self) -> None:
        """It has its GPUs again, and joins with what was announced."""
        if self.server.state is ServerState.SLEEPING:
            self._move(ServerState.STALE, "wakes up")

    # Reports from its loop

    def joined(self, version: PolicyVersion, *, was_asleep: bool) -> None:
        """It has loaded `version`, and its digests are the published ones."""
        self.server.version = version
        self.server.num_joins += 1
        if was_asleep:
            self.took_publish(version)
        self.num_mismatches = 0
        self._serve(f"version {version}, digests verified")

    def joined_as_started(self) -> None:
        """Its process holds the weights of `fixed_version`."""
        self.server.num_joins += 1
        self._serve("again, with the weights that it was started with")

    def did_not_join(self, why: str) -> None:
        """Its process is to be restarted before it joins."""
        self._move(ServerState.RESTARTING, why)

    def is_cleared(self) -> None:
        """A stream broke, but it answers and holds the weights that it should."""
        self._move(ServerState.SERVING)

    def did_not_fall_asleep(self, why: str) -> None:
        """Its process is to be restarted, because it may hold memory."""
        if not self.server.is_leaving():
            self._is_announced_change = True
            self._move(ServerState.RESTARTING, why)

    def restarted(self) -> None:
        """Its process is ready again."""
        self._move(ServerState.STALE, self.server.reason)

    def give_up(self) -> None:
        """It was restarted too often."""
        self._move(ServerState.DEAD, self.server.reason)

    def _serve(self, what: str) -> None:
        level = logging.WARNING if self._is_announced_change else logging.INFO
        self._is_announced_change = False
        log.log(level, "server %s serves %s", self.server.url, what)
        self._move(ServerState.SERVING)

    def _move(self, state: ServerState, reason: str = "") -> None:
        self.server.state, self.server.reason = state, reason
        if state in (ServerState.RESTARTING, ServerState.DEAD):
            # An external one that hangs breaks no connection.
            self.server.heartbeat.cut_streams(reason)
        self.changed.set()
        self._waits.notify()
