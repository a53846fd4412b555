"""The rollout servers as one: which of them gets a request, and what concerns all of them at once.

A server serves only after its weights were verified equal to the trainer's latest publication. How it joins,
fails and comes back is its lifecycle. A trainer that dies leaves the servers it was handed in an unknown
state: they join again.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import aiohttp

from asyncrl.loops import TrainersWait, Waits
from asyncrl.records import PolicyVersion, PublishOutcome
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.membership import Membership, Utilization
from asyncrl.serving.publication import Publication, WeightOwner
from asyncrl.serving.server import Server
from asyncrl.serving.server_process import ProcessOwner


class Fleet:
    """Callers ask its parts: `members` for servers, `router` for one with room, `weight_owner` for the latest
    publication, `utilization` for sums."""

    def __init__(
        self,
        urls: Sequence[str],
        settings: FleetSettings,
        *,
        session: aiohttp.ClientSession,
        waits: Waits,
        processes: ProcessOwner,
    ) -> None:
        self.session = session
        self._waits = waits
        self.weight_owner = WeightOwner(waits)
        self.members = Membership(
            urls,
            settings,
            session=session,
            waits=waits,
            weight_owner=self.weight_owner,
            processes=processes,
        )
        self.router = Router(self.members, waits, max_running_requests=settings.max_running_requests)
        self.utilization = Utilization(self.members)

    def serve_only(self, publication: Publication) -> None:
        """Every server joins with this version, and with no other until the next call."""
        self.weight_owner.renew(publication)
        self.members.verify_again(f"to hold version {publication.version}")

    def hand_wire_to_trainer(self) -> list[str]:
        """URLs to publish the next version to; the fleet leaves their weights alone until it is announced."""
        urls = [server.url for server in self.members.serving()]
        self.weight_owner.give(urls)
        return urls

    async def announce(self, publication: Publication, outcomes: Mapping[str, PublishOutcome]) -> None:
        """The trainer published: servers that took it serve on, the others leave with the reason.

        A server that was handed to a trainer and has no outcome (the trainer died) is
        stale: it may hold, or be about to load, a version that was lost.
        """
        self.weight_owner.renew(publication)
        self.router.open_gate()
        handed = self.weight_owner.take_back()
        for server in self.members.serving():
            lifecycle, outcome = self.members.lifecycle(server), outcomes.get(server.url)
            if outcome is not None and not outcome.is_installed:
                lifecycle.fail(outcome.detail)
            elif outcome is not None:
                lifecycle.took_publish(publication.version)
            # A server the trainer did not reach must not serve an older version than the announced one.
            elif server.url in handed or server.version != publication.version:
                lifecycle.missed_publish()
        for loop in self.members.loops.values():
            loop.lifecycle.wake()

    async def sleep(self) -> None:
        """No group gets a server until the next announcement, which wakes them all. Returns when none of them
        holds memory; may be cancelled and called again."""
        self.weight_owner.must_sleep = True
        self.router.close_gate()
        await self._waits.wait_until(
            self._are_asleep, owner=TrainersWait.TAKE, blocker="the memory of servers that fall asleep"
        )

    def _are_asleep(self) -> bool:
        loops = self.members.loops.values()
        for loop in loops:
            # Again and again: one that restarts cannot before its process is there.
            loop.lifecycle.sleep()
        return not any(loop.holds_memory() for loop in loops)


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
