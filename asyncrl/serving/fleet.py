"""The rollout servers as one: its parts, and what concerns all of them at once.

A server serves only after its weights were verified equal to the trainer's latest publication. How it joins,
fails and comes back is its lifecycle. A trainer that dies leaves the servers it was handed in an unknown
state: they join again.
"""

from collections.abc import Mapping, Sequence

import aiohttp

from asyncrl.loops import TrainersWait, Waits
from asyncrl.records import PublishOutcome
from asyncrl.serving.fleet_settings import FleetSettings
from asyncrl.serving.membership import Membership
from asyncrl.serving.publication import Publication
from asyncrl.serving.router import Router
from asyncrl.serving.server_process import ProcessOwner
from asyncrl.serving.weight_owner import WeightOwner


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


class Utilization:
    """Sums over all servers, also those that left: they never fall."""

    def __init__(self, members: Membership) -> None:
        self._members = members

    def busy_seconds(self) -> float:
        """Seconds, summed over servers, in which at least one request was running."""
        return sum(server.busy_so_far() for server in self._members.all())

    def stream_seconds(self) -> tuple[float, float]:
        """Sums over servers: requests running times seconds, and their squares times seconds."""
        servers = self._members.all()
        for server in servers:
            server.count_streams()
        return sum(s.stream_seconds for s in servers), sum(s.squared_stream_seconds for s in servers)

    def cache_shares(self) -> tuple[float, float]:
        """Shares of the caches whose size is known: (held by requests now, expected to be held)."""
        known = [
            (s, s.capacity.cache_tokens) for s in self._members.servers.values() if s.capacity is not None
        ]
        room = max(1, sum(tokens for _, tokens in known))
        held, expected = sum(s.held_tokens for s, _ in known), sum(s.expected_tokens for s, _ in known)
        return held / room, expected / room

    def num_retractions(self) -> int:
        return sum(server.num_retractions for server in self._members.all())
