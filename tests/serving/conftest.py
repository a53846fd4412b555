"""Two fake engines, and fleets on them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.fleets import Crew, crew_on


@pytest.fixture
async def one() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


@pytest.fixture
async def two() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


@pytest.fixture
async def pair(one: FakeEngine, two: FakeEngine, tmp_path: Path) -> AsyncIterator[Crew]:
    """A fleet of both engines; they serve version 0."""
    async with crew_on([one, two], tmp_path) as crew:
        await crew.announce(0)
        await crew.until_serving(2)
        yield crew


@pytest.fixture
async def solo(one: FakeEngine, tmp_path: Path) -> AsyncIterator[Crew]:
    """A fleet of the first engine; it serves version 0."""
    async with crew_on([one], tmp_path) as crew:
        await crew.announce(0)
        await crew.until_serving(1)
        yield crew
