"""Servers and trainer on the same GPUs (placement.colocated): the trainer's from the reply with a batch until
its next take, the servers' in between.

A take announces a version, which wakes the servers: they join with it, as after any absence. Before the reply
they sleep. What is in flight then is aborted and resumes from its prefix, or with rollout.interrupt drain it
ends first; a running evaluation ends first too, so that it has one version.

Tools and agents need no GPU: with continue, retract and abort they work on while the servers sleep, an answer
that comes meanwhile is recorded, and its trajectory's next turn waits for the servers; an agent's own time
stands still in that wait. With drain the servers sleep only once all turns of what has begun have ended.
"""

from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.loops import RunPhase, TrainersWait, Waits
from asyncrl.rollout.drain import Drain
from asyncrl.serving.fleet import Fleet


@dataclass(frozen=True)
class SharedGpus:
    """One per run whose trainer shares its GPUs."""

    fleet: Fleet
    drainer: Drain
    waits: Waits
    state: RunPhase
    is_evaluating: Callable[[], bool]
    """Whether an evaluation runs on the servers."""
    ends_with_its_version: bool
    """Whether trajectories end before the next version (rollout.interrupt: drain)."""

    async def hand_to_trainer(self) -> None:
        """Returns when no server holds memory. May be canceled and called again."""
        await self._wait(lambda: not self.is_evaluating(), "an evaluation, before the servers sleep")
        if self.ends_with_its_version:
            self.fleet.router.start_drain()
            await self._wait(self.drainer.is_idle, "trajectories in flight, before the servers sleep")
        await self.fleet.sleep()

    async def _wait(self, is_over: Callable[[], bool], blocker: str) -> None:
        """A run that was asked to stop waits for nothing here."""
        await self.waits.wait_until(
            lambda: self.state.is_stopped or is_over(), owner=TrainersWait.TAKE, blocker=blocker
        )
