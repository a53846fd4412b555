"""Draining before a publish (rollout.interrupt: drain): what is in flight ends, and nothing new begins.

Every trajectory then has one policy version, as with trainers without partial rollouts, and servers idle
until the longest has ended. The controller waits because SGLang, which would delay an update without a pause,
serves it before its digests are compared and lets requests in between two buckets of a transport. Evaluations
end too, and so does what streams from servers that the trainer does not publish to.

A trajectory whose tool works has tokens and no request: it counts as in flight, and so do the turns that
follow. An agent counts from its start, before its first call: its place among agent.max_agents may be the one
that an agent with tokens waits for; no agent of another group starts. Besides tokens, a publish waits
turns.max_tool_seconds per trajectory at most, and agent.timeout_seconds of the agents' own time.

Groups that have tokens continue, in rounds and on other servers too, while one can take them. What cannot
(its only server died, or the run stops) is dropped when the next version would have to (`Generator.run`).
"""

from dataclasses import dataclass

from asyncrl.errors import Superseded
from asyncrl.loops import TrainersWait, Waits
from asyncrl.records import PolicyVersion
from asyncrl.replay.group import GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.generate import Generator
from asyncrl.serving.fleet import Fleet, Gate


@dataclass(frozen=True)
class Drain:
    """One per run. The gate of the fleet holds its state; the next announcement opens it."""

    queue: ReplayQueue
    fleet: Fleet
    generator: Generator
    waits: Waits

    async def run(self, version: PolicyVersion) -> None:
        """Returns when nothing is generated and every end is on disk, before `version` is published. May be
        canceled and called again.

        Raises Superseded when no trainer is at work on a batch, or another one comes meanwhile.
        """
        if not self.fleet.weight_owner.is_with_trainer:
            raise Superseded(f"The drain for version {version} was given up: no batch is out.")
        self.fleet.router.start_drain()
        await self.waits.wait_until(
            lambda: self.fleet.router.gate is Gate.OPEN or self.is_idle(),
            owner=TrainersWait.PUBLISH,
            blocker=f"trajectories in flight, before version {version} is published",
        )
        if self.fleet.router.gate is Gate.OPEN:
            raise Superseded(f"The drain for version {version} was given up: a take came after it.")
        self.fleet.router.close_gate()
        # A controller that lost the end of a trajectory would continue it, under the new version.
        with self.waits.waiting(TrainersWait.PUBLISH, "the journal's disk"):
            await self.queue.journal.barrier()

    def is_idle(self) -> bool:
        """Whether nothing is generated, nor would be while the gate lets groups end."""
        if self.generator.state.is_ending:
            return not self.generator.running
        if self.fleet.router.num_in_flight:
            return False
        can_continue = self.generator.may_stream() and bool(self.fleet.members.serving())
        return not (can_continue and self._has_begun_group())

    def _has_begun_group(self) -> bool:
        """Whether a group is between two streams: it waits for a server, a tool or an agent."""
        return any(
            group.state is GroupState.OPEN
            and self.generator.has_begun(group)
            and any(trajectory.finish is None for trajectory in group.trajectories)
            for group in self.queue.live.values()
        )
