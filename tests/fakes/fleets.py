"""Fleets whose servers do not exist, for what a fleet decides without asking them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl.serving.fleet import Fleet
from asyncrl.serving.sglang import new_session
from asyncrl.waits import Waits


async def restart(url: str) -> None:
    raise AssertionError(f"{url} did nothing wrong")


@asynccontextmanager
async def fleet_of_two(*, version: int = 0, max_running_requests: int = 20) -> AsyncIterator[Fleet]:
    """Both serve `version`."""
    async with new_session() as session:
        fleet = Fleet(
            ["http://a", "http://b"],
            session=session,
            waits=Waits(),
            max_running_requests=max_running_requests,
            restart=restart,
        )
        fleet.serve_fixed(version)
        yield fleet
        await fleet.close()
