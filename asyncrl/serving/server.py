"""One rollout server as known here: its state, which its lifecycle alone changes, and its load."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from asyncrl.loops import now_seconds
from asyncrl.records import PolicyVersion
from asyncrl.serving.capacity import Capacity
from asyncrl.serving.heartbeat import Heartbeat


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

    def row(self) -> dict[str, Any]:
        """Its row in `asyncrl servers`."""
        return {
            "url": self.url,
            "state": self.state.value,
            "version": self.version,
            "num_running": self.num_running,
            "held_tokens": self.held_tokens,
            "expected_tokens": self.expected_tokens,
            "cache_tokens": None if self.capacity is None else self.capacity.cache_tokens,
            "reason": self.reason,
        }

    def count_streams(self) -> None:
        """Brings both sums of stream seconds up to now; before each change of `num_running`."""
        now = now_seconds()
        streamed = self.num_running * (now - self.counted_seconds)
        self.stream_seconds += streamed
        self.squared_stream_seconds += self.num_running * streamed
        self.counted_seconds = now
