"""Which streams end before their trajectories do, and the loop that ends them.

A stream is aborted early when its group is parked or was dropped, when its server was removed or sleeps, or
when one of its trajectories got no token for `hedge_seconds` and another server has room for them. The server
is asked to end it, so that the stream still carries what the server has; a server that does not answer is
left after GRACE_SECONDS. Confirmed tokens stay: the trajectory resumes from its prefix, so none is confirmed
twice. A trajectory that waits for a tool has no stream: nothing here touches it, and `TurnPlayer.loop`
abandons its answer when its group was dropped.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from asyncrl.loops import RunPart, Waits
from asyncrl.replay.group import GroupState
from asyncrl.rollout.filter import Oversampling
from asyncrl.rollout.generate import Connection, Generator
from asyncrl.serving.server import ServerState

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
"""How long a stream may take to end after its server was asked."""


@dataclass(slots=True)
class EarlyAbort(RunPart):
    """One per run; its loop costs nothing while no stream is due."""

    generator: Generator
    oversampling: Oversampling
    waits: Waits
    hedge_seconds: float | None = None

    async def loop(self) -> None:
        """Does not return. Whatever changes the queue or the fleet wakes it."""
        while True:
            await self.waits.wait_until(
                lambda: any(map(self._is_due, self.generator.connections)),
                owner="early abort",
                blocker="a stream to end early",
                timeout_seconds=None if self.hedge_seconds is None else 0.25 * self.hedge_seconds,
            )
            ending = [one for one in self.generator.connections if self._is_due(one)]
            if not ending:
                continue
            for connection in ending:
                if self._is_hedged(connection):
                    connection.is_shunned = True
                    log.warning(
                        "group %d got no token from %s for %.0f s: it resumes elsewhere from its prefixes",
                        connection.group.group_id,
                        connection.server.url,
                        connection.silence_seconds(),
                    )
            await self._end(ending)

    def may_admit(self) -> bool:
        """Whether the round has room for a new group."""
        return self.oversampling.may_admit(self.generator.num_waiting)

    async def _end(self, connections: list[Connection]) -> None:
        def left() -> list[Connection]:
            return [one for one in connections if one in self.generator.connections]

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await asyncio.gather(*map(self.generator.end, connections))
                await self.waits.wait_until(
                    lambda: not left(),
                    owner="early abort",
                    blocker=f"{len(connections)} streams that were asked to end",
                )
        for connection in left():
            connection.cut()

    def _is_due(self, connection: Connection) -> bool:
        if connection.is_ending:
            return False
        return (
            self.oversampling.is_over()
            or connection.group.state is not GroupState.OPEN
            or connection.server.state is ServerState.LEAVING
            # A request that reached it after the others had ended waits until it wakes.
            or connection.server.is_asleep
            or self._is_hedged(connection)
        )

    def _is_hedged(self, connection: Connection) -> bool:
        if self.hedge_seconds is None or connection.silence_seconds() < self.hedge_seconds:
            return False
        trajectories = [request.trajectory for request in connection.requests.values()]
        tokens = self.generator.load.tokens(connection.group, trajectories)
        other = self.generator.fleet.router.pick(
            len(connection.requests), tokens=tokens, shunned=connection.server
        )
        return other is not None and other is not connection.server
