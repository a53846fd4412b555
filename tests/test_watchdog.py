"""The watchdog under the driven clock: warn, act, stop, each at its time."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from simulation.loop import DrivenLoop

from asyncrl.waits import Waits, now_seconds
from asyncrl.watchdog import Stalled, Watch, watch


@dataclass
class Scene:
    """Something that may move, and what the watchdog did about it."""

    position: int = 0
    is_due: bool = True
    did: list[tuple[float, str]] = field(default_factory=list)

    def watch(self) -> Watch:
        return Watch(
            what="the server streams nothing",
            knob="serving.request_timeout_seconds",
            is_due=lambda: self.is_due,
            progress=lambda: self.position,
            act=lambda why: self.did.append((now_seconds(), "act")),
            warn_seconds=10.0,
            act_seconds=20.0,
            stop_seconds=30.0,
        )

    async def look(self, waits: Waits) -> None:
        await watch(
            [self.watch()],
            interval_seconds=1.0,
            describe=waits.describe_waits,
            note=lambda text: self.did.append((now_seconds(), "note")),
        )


def drive(scenario: Any) -> None:
    loop = DrivenLoop(random.Random(0))
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


def test_silence_is_warned_of_then_acted_on_then_ends_the_run_by_name() -> None:
    async def scenario() -> None:
        scene, waits = Scene(), Waits()
        with waits.waiting("take", "groups for step 3"), pytest.raises(Stalled) as caught:
            await scene.look(waits)
        # The first look, at 1 s, starts the count; limits are passed at the look after them.
        assert scene.did == [(12.0, "note"), (22.0, "note"), (22.0, "act")]
        assert now_seconds() == 32.0
        assert str(caught.value) == (
            "Nothing moved for 31 s (serving.request_timeout_seconds): the server streams nothing.\n"
            "  take waits for groups for step 3 since 32 s"
        )

    drive(scenario)


def test_a_move_sets_the_watch_back() -> None:
    async def scenario() -> None:
        scene = Scene()
        looking = asyncio.create_task(scene.look(Waits()))
        for _ in range(20):
            await asyncio.sleep(9.5)
            scene.position += 1
        assert scene.did == []
        await asyncio.sleep(25)
        assert [what for _, what in scene.did] == ["note", "note", "act"]
        scene.position += 1
        await asyncio.sleep(25)
        assert [what for _, what in scene.did] == 2 * ["note", "note", "act"]
        looking.cancel()

    drive(scenario)


def test_nothing_is_late_while_nobody_waits() -> None:
    async def scenario() -> None:
        scene = Scene(is_due=False)
        looking = asyncio.create_task(scene.look(Waits()))
        await asyncio.sleep(1000)
        assert scene.did == []
        looking.cancel()

    drive(scenario)
