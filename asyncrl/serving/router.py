"""Routing: which server a request goes to, and how full each of them is."""

from enum import StrEnum

from asyncrl.loops import Waits
from asyncrl.records import PolicyVersion
from asyncrl.serving.membership import Membership
from asyncrl.serving.server import Server


class Gate(StrEnum):
    """The groups that get a server; fewer than all from the drain before a publish to its announcement."""

    OPEN = "open"
    ENDING = "ending"
    """Only groups that have tokens, so that they end with the version they began with."""
    CLOSED = "closed"


class Router:
    def __init__(self, members: Membership, waits: Waits, *, max_running_requests: int) -> None:
        self._members = members
        self._waits = waits
        self.max_running_requests = max_running_requests
        self.gate = Gate.OPEN
        self.num_in_flight = 0
        """Requests that run, also on servers that were removed."""

    def pick(
        self,
        num_requests: int,
        *,
        tokens: int = 0,
        before: Server | None = None,
        at_least: PolicyVersion = 0,
        shunned: Server | None = None,
        is_new: bool = False,
    ) -> Server | None:
        """The least loaded serving server with room for `num_requests` more, or None.

        These will hold `tokens` of its cache. A server that is expected to need more than it has would take
        keys and values of some requests back, to compute them twice; an idle one takes any group.
        `before` served these trajectories last: its cache may still hold their prefix, so it is preferred
        unless another one has less to do by more than these requests. `at_least` is the newest version among
        their tokens, which must not go back to an older one: a publish reaches one server before the next, so
        tokens of a version may arrive before it is announced, and then wait for that.
        `shunned` is taken only when no other one serves.
        """
        if self.gate is Gate.CLOSED or (is_new and self.gate is Gate.ENDING):
            return None
        serving = self._members.serving()
        if shunned is not None:
            serving = [server for server in serving if server is not shunned] or serving
        fitting = [
            server
            for server in serving
            if self._has_room(server, num_requests, tokens)
            and server.version is not None
            and server.version >= at_least
        ]
        least = min(fitting, key=self.load, default=None)
        if least is None or before is None or before not in fitting:
            return least
        own = self._share(before, num_requests, tokens)
        return before if self.load(before) - self.load(least) <= own + 1e-9 else least

    def load(self, server: Server) -> float:
        """How full a server is, by its requests or by what they are expected to hold; 1 is full."""
        return self._share(server, server.num_running, server.expected_tokens)

    def _share(self, server: Server, num_requests: int, tokens: int) -> float:
        requests = num_requests / self._most_requests(server)
        return requests if server.capacity is None else max(requests, tokens / server.capacity.cache_tokens)

    def _most_requests(self, server: Server) -> int:
        most = self.max_running_requests
        return most if server.capacity is None else min(most, server.capacity.running_requests)

    def _has_room(self, server: Server, num_requests: int, tokens: int) -> bool:
        if not server.num_running:
            return True
        has_places = server.num_running + num_requests <= self._most_requests(server)
        room = None if server.capacity is None else server.capacity.cache_tokens - server.expected_tokens
        return has_places and (room is None or tokens <= room)

    def salt(self, server: Server, version: PolicyVersion | None = None) -> str:
        """Keeps the prefix caches of versions apart. A join opens new ones: what a server computed before,
        under weights of a lost trainer or of a process restarted from outside, is unknown."""
        return f"{server.num_joins}-v{server.version if version is None else version}"

    def acquire(self, server: Server, num_requests: int) -> None:
        """These stream from it now. The sender says what they will hold (`Server.expect`)."""
        server.begin(num_requests)
        self.num_in_flight += num_requests

    def release(self, server: Server, num_requests: int = 1) -> None:
        server.end(num_requests)
        self.num_in_flight -= num_requests
        self._members.forget_if_drained(server)
        self._waits.notify()

    def start_drain(self) -> None:
        """From now on only groups that have tokens get a server; an announcement opens the gate again."""
        if self.gate is Gate.OPEN:
            self.gate = Gate.ENDING

    def close_gate(self) -> None:
        """No group gets a server until the next announcement."""
        self.gate = Gate.CLOSED

    def open_gate(self) -> None:
        """A version was announced."""
        self.gate = Gate.OPEN
