"""The rollout servers as one: who serves, with which version, and who gets the next request.

A server serves only after its weights were verified equal to the trainer's latest publication. Of each server
one side writes the weights: the trainer, from the reply to a take that named it until the next take, else the
fleet; so two publications never mix on a server. Failing servers leave at once, are restarted and join again
as stale. A trainer that dies leaves the servers it was handed in an unknown state: they join again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any

import aiohttp

from asyncrl.errors import ServerError, ServerSilent, WeightMismatch
from asyncrl.records import PolicyVersion, PublishOutcome
from asyncrl.serving.publication import INSTALL_SECONDS, Publication, install
from asyncrl.serving.server import Server, ServerState
from asyncrl.serving.sglang import weight_version
from asyncrl.waits import Waits

log = logging.getLogger(__name__)

MAX_RESTARTS = 5
"""Restarts of one server in a row, without a publish in between that it took, before the run gives it up."""
REPUBLISH_SECONDS = 30.0
"""Longest wait for a trainer that is not in a step to write a publication again."""
MAX_MISSED = 2
"""Joins that may be too late before the next batch waits for the one under way."""


class Gate(StrEnum):
    """Who gets a server now; narrower than open from the drain before a publish until it is announced."""

    OPEN = "open"
    ENDING = "ending"
    """Only groups that have tokens, so that they end with the version they began with."""
    CLOSED = "closed"


async def leave_alone(url: str) -> None:
    """Of servers that are not ours."""


class Fleet:
    """`restart` brings the process behind a URL up again (or waits for an external one) until it is ready;
    `stop` ends the process of a server that was removed (and leaves an external one alone).

    `install_seconds` limits each request of an install: a server that hangs then is restarted.
    """

    def __init__(
        self,
        urls: list[str],
        *,
        session: aiohttp.ClientSession,
        waits: Waits,
        max_running_requests: int,
        restart: Callable[[str], Awaitable[None]],
        stop: Callable[[str], Awaitable[None]] = leave_alone,
        install_seconds: float = INSTALL_SECONDS,
        interrupt: str = "continue",
    ) -> None:
        self.servers = {url: Server(url) for url in urls}
        self.session = session
        self.max_running_requests = max_running_requests
        self._waits = waits
        self._restart = restart
        self._stop = stop
        self._install_seconds = install_seconds
        self._interrupt = interrupt
        self._publication: Publication | None = None
        self.wants_publication = False
        """A server loaded other bytes than were published: the files may be damaged, and the trainer has the
        weights."""
        self.trainer_owns_wire = False
        self._handed: dict[str, None] = {}
        """URLs that the trainer was last told to publish to, until it reports the outcome."""
        self.gate = Gate.OPEN
        self.num_in_work = 0
        """Requests that run, also on servers that were removed and are no longer in `servers`."""
        self._tasks: dict[asyncio.Task[None], Server] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        """URLs of removed servers -> the end of their processes."""

    def serving(self) -> list[Server]:
        return [server for server in self.servers.values() if server.state is ServerState.SERVING]

    def num_running(self) -> int:
        return sum(server.num_running for server in self.servers.values())

    def pick(
        self,
        num_requests: int,
        *,
        before: Server | None = None,
        at_least: PolicyVersion = 0,
        shunned: Server | None = None,
        is_new: bool = False,
    ) -> Server | None:
        """The least loaded serving server with room for `num_requests` more, or None.

        `before` served these trajectories last: its cache may still hold their prefix, so it is preferred
        unless another one has less to do by more than `num_requests`. `at_least` is the newest version among
        their tokens, which must not go back to an older one: a publish reaches one server before the next, so
        tokens of a version may arrive before it is announced, and then wait for that.
        `shunned` is taken only when no other one serves, a slow one `is_new` only when all are slow.
        """
        if self.gate is Gate.CLOSED or (is_new and self.gate is Gate.ENDING):
            return None
        serving = self.serving()
        if is_new:
            serving = [server for server in serving if not server.is_slow] or serving
        if shunned is not None:
            serving = [server for server in serving if server is not shunned] or serving
        fitting = [
            server
            for server in serving
            if server.num_running + num_requests <= max(self.max_running_requests, num_requests)
            and server.version is not None
            and server.version >= at_least
        ]
        least = min(fitting, key=lambda server: server.num_running, default=None)
        if least is None or before is None or before not in fitting:
            return least
        return before if before.num_running - least.num_running <= num_requests else least

    def salt(self, server: Server) -> str:
        """Keeps the prefix caches of versions apart. A join opens new ones: what a server computed before,
        under weights of a lost trainer or of a process that somebody restarted, is unknown."""
        return f"{server.num_joins}-v{server.version}"

    def busy_seconds(self) -> float:
        """Seconds, summed over servers, in which at least one request was running."""
        return sum(server.busy_so_far() for server in self.servers.values())

    def acquire(self, server: Server, num_requests: int) -> None:
        server.begin(num_requests)
        self.num_in_work += num_requests

    def release(self, server: Server, num_requests: int = 1) -> None:
        server.end(num_requests)
        self.num_in_work -= num_requests
        if server.num_running == 0 and server.is_leaving():
            self._forget(server)
        self._waits.notify()

    async def announce(self, publication: Publication, outcomes: Mapping[str, PublishOutcome]) -> None:
        """The trainer published: servers that took it serve on, the others leave with the reason.

        A server that was handed to a trainer and of which nobody says what became (the trainer died) is
        stale: it may hold, or be about to load, a version that was lost.
        """
        self.renew(publication)
        self.trainer_owns_wire, self.gate = False, Gate.OPEN
        for url, outcome in outcomes.items():
            server = self.servers.get(url)
            if server is None or server.state is not ServerState.SERVING:
                continue
            if outcome.is_installed:
                server.version, server.num_restarts, server.num_missed = publication.version, 0, 0
            else:
                self.fail(server, outcome.detail)
        for server in self.serving():
            is_unknown = server.url in self._handed and server.url not in outcomes
            # A server the trainer did not reach must not serve an older version than the announced one.
            if is_unknown or server.version != publication.version:
                server.num_missed += 1
                self._verify_anew(server, "missed a publish")
        self._handed = {}
        self._waits.notify()

    def renew(self, publication: Publication) -> None:
        """The trainer has written a publication: servers join with this one from now on."""
        self._publication, self.wants_publication = publication, False
        self._waits.notify()

    def has_late_joiner(self) -> bool:
        """Whether a server that was too late before is on its way: steps may be shorter than an install, and
        it would never arrive."""
        return any(s.is_installing and s.num_missed >= MAX_MISSED for s in self.servers.values())

    def published(self) -> Publication:
        """The version that was announced last."""
        assert self._publication is not None, "the trainer announces its version before anything else"
        return self._publication

    def hand_wire_to_trainer(self) -> list[str]:
        """URLs to publish the next version to; the fleet leaves their weights alone until it is announced."""
        self.trainer_owns_wire = True
        self._handed = dict.fromkeys(server.url for server in self.serving())
        return list(self._handed)

    def start(self) -> None:
        """Every server joins as soon as it is ready and the first publication is known."""
        for server in self.servers.values():
            self._spawn(server, self._join(server))

    def serve_only(self, publication: Publication) -> None:
        """Every server joins with this version, and with no other until the next call."""
        self.renew(publication)
        for server in self.servers.values():
            if server.state is not ServerState.DEAD:
                server.num_mismatches = 0
                self._verify_anew(server, f"to hold version {publication.version}", is_routine=True)

    def serve_fixed(self, version: PolicyVersion) -> None:
        """Without a trainer: every server serves the weights it was started with, as `version`."""
        for server in self.servers.values():
            server.version, server.state, server.reason = version, ServerState.SERVING, ""

    def fail(self, server: Server, why: str) -> None:
        """Takes a server out of service and restarts it in the background."""
        if server.state is not ServerState.SERVING:
            return
        server.state, server.reason, server.is_awaited = ServerState.STALE, why, True
        log.warning("server %s leaves: %s", server.url, why)
        self._spawn(server, self._restart_and_join(server))
        self._waits.notify()

    def add(self, url: str) -> None:
        """A server that joins once its weights are verified; one that was given up gets another chance.

        Raises ServerError when it is there, or is no URL of a server.
        """
        there = self.servers.get(url)
        if there is not None and there.state not in (ServerState.DEAD, ServerState.LEAVING):
            raise ServerError(f"{url} is there already: {there.state.value}.")
        if not url.startswith(("http://", "https://")) or url.endswith("/"):
            raise ServerError(f'"{url}" is not the URL of a server, such as http://10.0.0.7:30000.')
        server = self.servers[url] = Server(url, reason="added", is_awaited=True)
        log.warning("server %s was added; it serves once its weights are verified", url)
        ending = self._endings.pop(url, None)
        # One that does not answer yet is waited for, or started, after this first try.
        self._spawn(server, self._join(server) if ending is None else self._return(server, ending))
        self._waits.notify()

    def remove(self, url: str) -> None:
        """Drains a server: what streams from it resumes elsewhere, then it is forgotten
        and its process ends.

        Raises ServerError when it is unknown or the last one that is not given up.
        """
        server = self.servers.get(url)
        if server is None:
            raise ServerError(f"There is no server {url}. Known: {', '.join(self.servers)}.")
        staying = [
            other
            for other in self.servers.values()
            if other is not server and other.state not in (ServerState.DEAD, ServerState.LEAVING)
        ]
        if not staying:
            raise ServerError(f"{url} is the last rollout server. Add another one first.")
        server.state, server.reason = ServerState.LEAVING, "removed"
        log.warning("server %s was removed: %d requests resume elsewhere", url, server.num_running)
        if not server.num_running:
            self._forget(server)
        self._waits.notify()

    def change_and_list(self, action: str, url: str) -> list[dict[str, Any]]:
        """ "add" or "remove" `url`, or only "list"; what is known of each server. Raises ServerError."""
        if action == "add":
            self.add(url)
        elif action == "remove":
            self.remove(url)
        elif action != "list":
            raise ServerError(f'The action is "{action}", expected add, remove or list.')
        return [server.row() for server in self.servers.values()]

    def _forget(self, server: Server) -> None:
        if self.servers.get(server.url) is server:
            del self.servers[server.url]
            self._endings[server.url] = self._spawn(server, self._end_process(server))

    async def _end_process(self, server: Server) -> None:
        """Once nobody starts it or writes to it any more."""
        this = asyncio.current_task()
        others = [task for task, one in self._tasks.items() if one is server and task is not this]
        await asyncio.gather(*others, return_exceptions=True)
        await self._waits.wait_until(
            lambda: server.url not in self._handed,
            owner=f"server {server.url}",
            blocker="the trainer's publication, before it ends",
        )
        await self._stop(server.url)

    async def _return(self, server: Server, ending: "asyncio.Task[None]") -> None:
        """A server whose process was ended, or is about to be, restarts."""
        await asyncio.gather(ending, return_exceptions=True)
        await self._restart_and_join(server)

    async def suspect(self, server: Server, error: ServerError) -> None:
        """A stream of this server broke: it is restarted unless it answers that it is ready, and verified
        again unless it holds the weights it should (a process may have been restarted by somebody else).

        One that went silent is restarted whatever it answers: its front end may outlive its scheduler.
        """
        if server.state is not ServerState.SERVING:
            return
        if isinstance(error, ServerSilent):
            return self.fail(server, str(error))
        label = await weight_version(self.session, server.url)
        if server.state is not ServerState.SERVING:
            return
        if label is None:
            self.fail(server, str(error))
        elif label != str(server.version) and server.url not in self._handed:
            self._verify_anew(server, f"it holds weight version {label}, not {server.version}")

    def restart_stuck(self, why: str) -> None:
        """Restarts the serving servers that hold requests: one of them keeps the run waiting."""
        for server in self.serving():
            if server.num_running:
                self.fail(server, why)

    def has_hope(self) -> bool:
        """False when every server was given up."""
        return any(server.state is not ServerState.DEAD for server in self.servers.values())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, server: Server, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks[task] = server
        task.add_done_callback(self._tasks.pop)
        return task

    def _verify_anew(self, server: Server, why: str, *, is_routine: bool = False) -> None:
        server.state, server.reason = ServerState.STALE, why
        log.log(logging.INFO if is_routine else logging.WARNING, "server %s joins again: %s", server.url, why)
        self._spawn(server, self._join(server))
        self._waits.notify()

    async def _restart_and_join(self, server: Server) -> None:
        while server.num_restarts < MAX_RESTARTS:
            if server.is_leaving():
                return
            server.num_restarts += 1
            try:
                with self._waits.waiting(f"server {server.url}", f"restart {server.num_restarts}"):
                    await self._restart(server.url)
                if server.is_leaving():
                    return
                return await self._join(server)
            except ServerError as error:
                server.reason = str(error)
                log.warning("restart %d of %s failed: %s", server.num_restarts, server.url, error)
        if server.is_leaving():
            return
        server.state = ServerState.DEAD
        log.error("server %s is given up after %d restarts: %s", server.url, MAX_RESTARTS, server.reason)
        self._waits.notify()

    async def _join_after(self, server: Server, damaged: Publication) -> None:
        """Joins with what the trainer writes next; a server that fails with that too is restarted.

        So is one for which nobody writes: at the end of a run there is no trainer any more.
        """
        if self._publication is damaged:
            self.wants_publication = True
            self._waits.notify()
        while self._publication is damaged:
            try:
                async with asyncio.timeout(REPUBLISH_SECONDS):
                    await self._waits.wait_until(
                        lambda: self._publication is not damaged,
                        owner=f"server {server.url}",
                        blocker="the trainer's publication, written again",
                    )
            except TimeoutError:
                # In the middle of a step the trainer cannot answer; its next publication comes for certain.
                if not self.trainer_owns_wire:
                    return await self._restart_and_join(server)
        await self._join(server)

    async def _join(self, server: Server) -> None:
        await self._waits.wait_until(
            lambda: self._publication is not None and server.url not in self._handed,
            owner=f"server {server.url}",
            blocker="the trainer's publication",
        )
        publication = self._publication
        assert publication is not None
        server.is_installing = True
        try:
            with self._waits.waiting(f"server {server.url}", f"the install of version {publication.version}"):
                await install(
                    self.session,
                    server.url,
                    publication,
                    interrupt=self._interrupt,
                    timeout_seconds=self._install_seconds,
                )
        except ServerError as error:
            if server.is_leaving():
                return
            server.reason = str(error)
            log.warning("server %s does not join: %s", server.url, error)
            if isinstance(error, WeightMismatch) and server.num_mismatches == 0:
                server.num_mismatches += 1
                self._spawn(server, self._join_after(server, publication))
            else:
                self._spawn(server, self._restart_and_join(server))
            return
        finally:
            server.is_installing = False
            self._waits.notify()
        if server.is_leaving():
            return
        if self._publication is not publication:
            # Another version was announced meanwhile.
            server.num_missed += 1
            self._spawn(server, self._join(server))
            return
        server.version, server.state, server.reason = publication.version, ServerState.SERVING, ""
        server.num_joins += 1
        server.num_mismatches = 0
        level = logging.WARNING if server.is_awaited else logging.INFO
        server.is_awaited = False
        log.log(level, "server %s serves version %d, digests verified", server.url, publication.version)
        self._waits.notify()
