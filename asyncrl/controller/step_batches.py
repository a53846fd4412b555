"""The batch of a version: taken from the queue, or read back from the journal as an earlier take got it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from asyncrl.controller.agent_metrics import agent_calls
from asyncrl.controller.dropped_groups import DroppedGroups
from asyncrl.controller.prometheus import RunMetrics
from asyncrl.controller.source_metrics import source_metrics
from asyncrl.controller.step_metrics import group_metrics, length_metrics, staleness_metrics
from asyncrl.controller.trainer_session import TrainerSession
from asyncrl.controller.turn_metrics import turn_metrics
from asyncrl.journal.batches import load_groups
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.task_group import end_tasks
from asyncrl.loops.waits import Blocker, BlockerKind, TrainersWait, Waits
from asyncrl.records import Batch, PolicyVersion, ScoredSequence
from asyncrl.replay.group import Group, sequences_of
from asyncrl.replay.policy import length_bias
from asyncrl.replay.queue import ReplayQueue
from asyncrl.serving.fleet import Fleet
from asyncrl.wire.messages import TakeRequest

SLICE_SECONDS = 1.0
"""How long a batch is collected before streams are read again. Servers whose streams are not read look
silent; but where thousands stream, each turn of theirs takes seconds."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A batch on its way: one of millions of tokens takes longer than a trainer waits for one answer."""

    version: PolicyVersion
    work: "asyncio.Task[tuple[Batch, dict[str, Any]]]"


@dataclass(eq=False)
class StepBatches:
    """One per run."""

    session: TrainerSession
    queue: ReplayQueue
    fleet: Fleet
    dropped_groups: DroppedGroups
    metrics: RunMetrics
    waits: Waits
    state: RunPhase
    temperature: float
    """Rollouts were sampled at it."""
    max_turns: int | None = None
    """Turns of a trajectory at most; None where each has one."""
    has_agents: bool = False
    """Whether agents make the trajectories."""
    has_sources: bool = False
    """Whether data.train names several."""
    has_verdicts: bool = True
    """Whether groups were graded."""
    has_rollouts: bool = True
    """Whether groups were generated."""
    _prepared: _Prepared | None = None
    """Until it is given, however often it is asked for."""

    async def close(self) -> None:
        """Ends the collection of a batch that will not be asked for."""
        if self._prepared is not None:
            await end_tasks(self._prepared.work)

    def given(self) -> None:
        """The trainer is told the batch now."""
        self._prepared = None

    async def give(self, request: TakeRequest) -> tuple[Batch | None, dict[str, Any]]:
        """The batch of the step and what its verdicts say; None when the run stops meanwhile."""
        version = request.version
        if self._prepared is None or self._prepared.version != version:
            if version < self.queue.num_steps_taken:
                work = self._read_back(version)
            elif taken := await self._groups(request):
                # The next request for this step gets the same.
                work = self._collect(version, map(sequences_of, taken), self._metrics_of(taken, version))
            else:
                return None, {}
            self._prepared = _Prepared(
                version, asyncio.create_task(work, name=f"batch of step {version + 1}")
            )
        found = await asyncio.shield(self._prepared.work)
        self.session.check_is_newest(request)
        return found

    async def _groups(self, request: TakeRequest) -> list[Group]:
        """Taken from the queue for the step; none when the run stops meanwhile."""
        version = request.version
        taken: list[Group] = []

        def try_take() -> bool:
            is_asked = not self.state.is_over and self.session.is_newest(request)
            if is_asked and not taken and version == self.queue.num_steps_taken:
                taken.extend(self.queue.take(version) or [])
            return bool(taken) or not is_asked or self.fleet.weight_owner.wants_publication

        await self.waits.wait_until(
            try_take, owner=TrainersWait.TAKE, blocker=Blocker(BlockerKind.GROUPS, str(version + 1))
        )
        if not taken:
            self.session.check_is_newest(request)
        return taken

    async def _read_back(self, version: PolicyVersion) -> tuple[Batch, dict[str, Any]]:
        """The batch as an earlier take was given it."""
        with self.waits.waiting(TrainersWait.TAKE, "the journal's disk"):
            await self.queue.journal.barrier()
        return await self._collect(version, load_groups(self.queue.journal, version), {})

    async def _collect(
        self, version: PolicyVersion, groups: Iterable[list[ScoredSequence]], verdicts: dict[str, Any]
    ) -> tuple[Batch, dict[str, Any]]:
        sequences: list[ScoredSequence] = []
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for group in groups:
            sequences += group
            if loop.time() - begun > SLICE_SECONDS:
                await asyncio.sleep(0)
                begun = loop.time()
        return Batch(version, self.temperature, sequences), verdicts

    def _metrics_of(self, taken: list[Group], version: int) -> dict[str, Any]:
        """Metrics of the groups of a new batch before it is trained."""
        new = [group for group in taken if group.taken_version == version]
        if not self.has_rollouts:
            return {}
        if self.has_verdicts:
            self.dropped_groups.taken(new, version + 1)
        for group in new:
            self.metrics.took(version - group.oldest_version())
        return {
            **(group_metrics(new, self.queue.has_signal) if self.has_verdicts else length_metrics(new)),
            **length_bias(new, self.queue.live.values(), self.queue.pop_aborted_lengths()),
            **staleness_metrics(taken, self.queue),
            **({} if self.max_turns is None else turn_metrics(new, max_turns=self.max_turns)),
            **(agent_calls(new) if self.has_agents else {}),
            **(source_metrics(new, has_turns=self.max_turns is not None) if self.has_sources else {}),
            "repeated_groups": len(taken) - len(new),
            "replay_ratio": len(taken) / len(new),
        }
