"""The rollout servers as one: which of them gets the next request, and which of them hears of a publish.

A server serves only after its weights were verified equal to the trainer's latest publication. How it joins,
fails and comes back is its lifecycle. A trainer that dies leaves the servers it was handed in an unknown
state: they join again.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.loops.waits import TrainersWait, Waits
from asyncrl.model.unsampled import Unsampled
from asyncrl.records import PolicyVersion, PublishOutcome
from asyncrl.serving.lifecycle import SILENCE_SECONDS, ServerLifecycle
from asyncrl.serving.pass_sums import PassSums
from asyncrl.serving.publication import INSTALL_SECONDS, Load, Publication, join, load_from_disk
from asyncrl.serving.server import Server, ServerState
from asyncrl.serving.weight_owner import WeightOwner

log = logging.getLogger(__name__)


class Gate(StrEnum):
    """The groups that get a server; fewer than all from the drain before a publish to its announcement."""

    OPEN = "open"
    ENDING = "ending"
    """Only groups that have tokens, so that they end with the version they began with."""
    CLOSED = "closed"


async def leave_alone(url: str) -> None:
    """Does nothing, for servers that are not ours."""


class Fleet:
    """`restart` brings the process behind a URL up again (or waits for an external one) until it is ready and
    says where it is now if that is another URL; `stop` ends the process of a server that was removed (and
    leaves an external one alone).

    `install_seconds` limits each request of an install: a server that hangs then is restarted. So is one of
    which nothing comes for `silence_seconds` although it has requests. A server whose cache is smaller than
    `longest_tokens`, a prompt with its response, does not join; nor does one that never samples other tokens
    than `unsampled`, where that is given.
    """

    def __init__(
        self,
        urls: list[str],
        *,
        session: aiohttp.ClientSession,
        waits: Waits,
        max_running_requests: int,
        restart: Callable[[str], Awaitable[str | None]],
        stop: Callable[[str], Awaitable[None]] = leave_alone,
        install_seconds: float = INSTALL_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        longest_tokens: int = 0,
        interrupt: str = "continue",
        load: Load = load_from_disk,
        unsampled: Unsampled | None = None,
    ) -> None:
        self.session = session
        self._restart = restart
        self.max_running_requests = max_running_requests
        self._waits = waits
        self._owner = WeightOwner(waits)
        self._make_lifecycle = functools.partial(
            ServerLifecycle,
            owner=self._owner,
            waits=waits,
            session=session,
            restart=self._restart_or_move,
            stop=stop,
            install=functools.partial(
                join,
                session,
                interrupt=interrupt,
                load=load,
                timeout_seconds=install_seconds,
                unsampled=unsampled,
            ),
            longest_tokens=longest_tokens,
            silence_seconds=silence_seconds,
        )
        self.servers = {url: Server(url) for url in urls}
        self._former: list[Server] = []
        """Servers that are no longer in `servers`: what they did stays counted."""
        self._lifecycles = {url: self._make_lifecycle(server) for url, server in self.servers.items()}
        """By URL, of removed servers too, whose processes may still have to end."""
        self._gate = Gate.OPEN
        self.num_in_flight = 0
        """Requests that run, also on servers that were removed and are no longer in `servers`."""

    # Routing

    def serving(self) -> list[Server]:
        return [server for server in self.servers.values() if server.is_serving()]

    def num_running(self) -> int:
        return sum(server.num_running for server in self.servers.values())

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
        `shunned` is taken only when no other one serves, a slow one `is_new` only when all are slow.
        """
        if self._gate is Gate.CLOSED or (is_new and self._gate is Gate.ENDING):
            return None
        serving = self.serving()
        if is_new:
            serving = [server for server in serving if not server.is_slow] or serving
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

    def salt(self, server: Server) -> str:
        """Keeps the prefix caches of versions apart. A join opens new ones: what a server computed before,
        under weights of a lost trainer or of a process restarted from outside, is unknown."""
        return f"{server.num_joins}-v{server.version}"

    def acquire(self, server: Server, num_requests: int) -> None:
        """These stream from it now. The sender says what they will hold (`Server.expect`)."""
        server.begin(num_requests)
        self.num_in_flight += num_requests

    def release(self, server: Server, num_requests: int = 1) -> None:
        server.end(num_requests)
        self.num_in_flight -= num_requests
        if server.is_leaving() and self.servers.get(server.url) is server:
            self._forget_once_drained(server)
        self._waits.notify()

    def busy_seconds(self) -> float:
        """Seconds, summed over servers, in which at least one request was running."""
        return sum(server.busy_so_far() for server in self._all())

    def stream_seconds(self) -> tuple[float, float]:
        """Sums over servers: requests running times seconds, and their squares times seconds."""
        servers = self._all()
        for server in servers:
            server.count_streams()
        return sum(s.stream_seconds for s in servers), sum(s.squared_stream_seconds for s in servers)

    def passes(self) -> PassSums:
        return sum((server.passes for server in self._all()), PassSums())

    def cache_shares(self) -> tuple[float, float]:
        """Shares of the caches whose size is known: (held by requests now, expected to be held)."""
        known = [(s, s.capacity.cache_tokens) for s in self.servers.values() if s.capacity is not None]
        room = max(1, sum(tokens for _, tokens in known))
        held, expected = sum(s.held_tokens for s, _ in known), sum(s.expected_tokens for s, _ in known)
        return held / room, expected / room

    def num_retractions(self) -> int:
        return sum(server.num_retractions for server in self._all())

    def _all(self) -> list[Server]:
        """All servers, also those that left: their sums never fall."""
        return [*self.servers.values(), *self._former]

    def has_hope(self) -> bool:
        """False when every server was given up."""
        return any(server.state is not ServerState.DEAD for server in self.servers.values())

    # The gate

    @property
    def gate(self) -> Gate:
        return self._gate

    def start_drain(self) -> None:
        """From now on only groups that have tokens get a server; an announcement opens the gate again."""
        if self._gate is Gate.OPEN:
            self._gate = Gate.ENDING

    def close_gate(self) -> None:
        """No group gets a server until the next announcement."""
        self._gate = Gate.CLOSED

    # Shared GPUs

    async def sleep(self) -> None:
        """No group gets a server until the next announcement, which wakes them all. Returns when none of them
        holds memory; may be cancelled and called again."""
        self._owner.must_sleep = True
        self.close_gate()
        await self._waits.wait_until(
            self._are_asleep, owner=TrainersWait.TAKE, blocker="the memory of servers that fall asleep"
        )

    def _are_asleep(self) -> bool:
        for lifecycle in self._lifecycles.values():
            # Again and again: one that restarts cannot before its process is there.
            lifecycle.sleep()
        return not any(lifecycle.holds_memory() for lifecycle in self._lifecycles.values())

    # Publications

    @property
    def wants_publication(self) -> bool:
        """A server loaded other bytes than were published: the trainer is to write them again."""
        return self._owner.wants_publication

    @property
    def trainer_owns_wire(self) -> bool:
        """The trainer has a batch and writes the weights of the servers that its take named."""
        return self._owner.is_with_trainer

    def published(self) -> Publication:
        """The version that was announced last."""
        return self._owner.published()

    def hand_wire_to_trainer(self) -> list[str]:
        """URLs to publish the next version to; the fleet leaves their weights alone until it is announced."""
        urls = [server.url for server in self.serving()]
        self._owner.give(urls)
        return urls

    async def announce(self, publication: Publication, outcomes: Mapping[str, PublishOutcome]) -> None:
        """The trainer published: servers that took it serve on, the others leave with the reason.

        A server that was handed to a trainer and has no outcome (the trainer died) is
        stale: it may hold, or be about to load, a version that was lost.
        """
        self.renew(publication)
        self._gate = Gate.OPEN
        handed = self._owner.take_back()
        for server in self.serving():
            lifecycle, outcome = self._lifecycles[server.url], outcomes.get(server.url)
            if outcome is not None and not outcome.is_installed:
                lifecycle.fail(outcome.detail)
            elif outcome is not None:
                lifecycle.took_publish(publication.version)
            # A server the trainer did not reach must not serve an older version than the announced one.
            elif server.url in handed or server.version != publication.version:
                lifecycle.missed_publish()
        for lifecycle in self._lifecycles.values():
            lifecycle.wake()

    async def until_written(self, owner: str) -> Publication:
        """The version that was announced last, once its folder is complete."""
        await self._owner.until_written(owner, unless=lambda: False)
        return self._owner.published()

    def renew(self, publication: Publication) -> None:
        """The trainer has written a publication: servers join with this one from now on."""
        self._owner.renew(publication)

    def has_late_joiner(self) -> bool:
        """Whether a server that was too late before is on its way: steps may be shorter than an install, and
        it would never arrive."""
        return any(self._lifecycles[url].is_late_joiner() for url in self.servers)

    # Servers that come, fail and go

    def start(self) -> None:
        """Every server joins as soon as it is ready and the first publication is known."""
        for lifecycle in self._lifecycles.values():
            lifecycle.start()

    def serve_only(self, publication: Publication) -> None:
        """Every server joins with this version, and with no other until the next call."""
        self.renew(publication)
        for lifecycle in self._lifecycles.values():
            lifecycle.verify_again(f"to hold version {publication.version}", is_routine=True)

    def serve_fixed(self, version: PolicyVersion) -> None:
        """Without a trainer: every server serves the weights it was started with, as `version`."""
        for lifecycle in self._lifecycles.values():
            lifecycle.serve_fixed(version)

    def fail(self, server: Server, why: str) -> None:
        """Takes a server out of service and restarts it in the background."""
        if server.is_serving():
            self._lifecycles[server.url].fail(why)

    async def suspect(self, server: Server, error: ServerError) -> None:
        """A stream of this server broke. Returns once it is known whether the server serves on."""
        if server.is_serving():
            await self._lifecycles[server.url].suspect(error)

    def restart_stuck(self, why: str) -> None:
        """Restarts the serving servers that hold requests: one of them keeps the run waiting."""
        for server in self.serving():
            if server.num_running:
                self.fail(server, why)

    def add(self, url: str) -> None:
        """A server that joins once its weights are verified; one that was given up gets another chance.

        Raises ServerError when it is there, or is no URL of a server.
        """
        there = self.servers.get(url)
        if there is not None and there.is_staying():
            raise ServerError(f"{url} is there already: {there.state.value}.")
        if not url.startswith(("http://", "https://")) or url.endswith("/"):
            raise ServerError(f'"{url}" is not the URL of a server, such as http://10.0.0.7:30000.')
        before = self._lifecycles.get(url)
        # Its joins are counted on: what an external server cached in its former life is still there.
        num_joins = 0 if before is None else before.server.num_joins
        server = Server(url, ServerState.STALE, reason="added", num_joins=num_joins)
        if there is not None:
            self._former.append(there)
        self.servers[url] = server
        self._lifecycles[url] = self._make_lifecycle(server, predecessor=before)
        self._lifecycles[url].added()

    def note_restart(self, url: str) -> None:
        """The process of `url` starts again."""
        if url in self.servers:
            self.servers[url].num_process_restarts += 1

    def remove(self, url: str) -> None:
        """Drains a server: its streams resume elsewhere, then it is forgotten and its process ends.

        Raises ServerError when it is unknown or the last one that is not given up.
        """
        server = self.servers.get(url)
        if server is None:
            raise ServerError(f"There is no server {url}. Known: {', '.join(self.servers)}.")
        if not any(other.is_staying() for other in self.servers.values() if other is not server):
            raise ServerError(f"{url} is the last rollout server. Add another one first.")
        log.warning("server %s was removed: %d requests resume elsewhere", url, server.num_running)
        self._lifecycles[url].leave()
        self._forget_once_drained(server)

    async def _restart_or_move(self, url: str) -> None:
        """Raises ServerError. A server that came up on another node is another one from now on."""
        now = await self._restart(url)
        if now is not None and now != url and (lost := self.servers.get(url)) is not None:
            self.add(now)
            # It was taken out of service by its death: what streamed from it has broken off.
            self._lifecycles[url].leave()
            self._forget_once_drained(lost)

    def change_and_list(self, action: str, url: str) -> list[dict[str, Any]]:
        """ "add" or "remove" `url`, or only "list"; what is known of each server. Raises ServerError."""
        if action == "add":
            self.add(url)
        elif action == "remove":
            self.remove(url)
        elif action != "list":
            raise ServerError(f'The action is "{action}", expected add, remove or list.')
        return [server.row() for server in self.servers.values()]

    async def close(self) -> None:
        await asyncio.gather(*(lifecycle.close() for lifecycle in self._lifecycles.values()))

    def _forget_once_drained(self, server: Server) -> None:
        """Its lifecycle ends the process."""
        if not server.num_running:
            self._former.append(self.servers.pop(server.url))
