"""The watchdog under the driven clock: warn, act, stop, each at its time."""

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from simulation.loop import DrivenLoop

from asyncrl.loops.waits import Waits, now_seconds
from asyncrl.loops.watchdog import Deadlines, Stalled, watch


class Scene(logging.Handler):
    """Something that may move, and what the watchdog said and did about it."""

    what = "the server streams nothing"
    knob = "serving.request_timeout_seconds"
    deadlines = Deadlines(warn_seconds=10.0, act_seconds=20.0, stop_seconds=30.0)

    def __init__(self) -> None:
        super().__init__()
        self.position = 0
        self.is_busy = True
        self.did: list[tuple[float, str]] = []

    def is_due(self) -> bool:
        return self.is_busy

    def progress(self) -> int:
        return self.position

    def act(self, why: str) -> None:
        self.did.append((now_seconds(), "act"))

    def emit(self, record: logging.LogRecord) -> None:
        self.did.append((now_seconds(), "warn"))

    async def look(self, waits: Waits) -> None:
        await watch([self], interval_seconds=1.0, describe=waits.describe_waits)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene, watchdog = Scene(), logging.getLogger("asyncrl.loops.watchdog")
    watchdog.addHandler(scene)
    yield scene
    watchdog.removeHandler(scene)


def driven(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs an async test under the driven clock."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with contextlib.closing(DrivenLoop(random.Random(0))) as loop:
            loop.run_until_complete(test(**fixtures))

    return run


@driven
async def test_silence_is_warned_of_then_acted_on_then_ends_the_run_by_name(scene: Scene) -> None:
    waits = Waits()
    with waits.waiting("take", "groups for step 3"), pytest.raises(Stalled) as caught:
        await scene.look(waits)
    # The first look, at 1 s, starts the count; deadlines are passed at the look after them.
    assert scene.did == [(12.0, "warn"), (22.0, "warn"), (22.0, "act")]
    assert now_seconds() == 32.0
    assert str(caught.value) == (
        "Nothing moved for 31 s (serving.request_timeout_seconds): the server streams nothing.\n"
        "  take waits for groups for step 3 since 32 s"
    )


@driven
async def test_a_move_sets_the_watch_back(scene: Scene) -> None:
    looking = asyncio.create_task(scene.look(Waits()))
    for _ in range(20):
        await asyncio.sleep(9.5)
        scene.position += 1
    assert scene.did == []
    await asyncio.sleep(25)
    assert [what for _, what in scene.did] == ["warn", "warn", "act"]
    scene.position += 1
    await asyncio.sleep(25)
    assert [what for _, what in scene.did] == 2 * ["warn", "warn", "act"]
    looking.cancel()


@driven
async def test_nothing_is_late_while_nobody_waits(scene: Scene) -> None:
    scene.is_busy = False
    looking = asyncio.create_task(scene.look(Waits()))
    await asyncio.sleep(1000)
    assert scene.did == []
    looking.cancel()
