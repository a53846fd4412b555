"""The controller's answer to a take: a batch and the servers to publish to, once that is on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.controller.step_batches import StepBatches
from asyncrl.controller.step_metrics import StepReport, batch_metrics
from asyncrl.controller.step_responses import StepResponses
from asyncrl.controller.trainer_session import TrainerSession
from asyncrl.controller.trainer_versions import TrainerVersions
from asyncrl.evaluation.schedule import HeldOutSchedule
from asyncrl.journal.compaction import Compaction
from asyncrl.journal.writer import Journal
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import TrainersWait, Waits
from asyncrl.records import Batch, ScoredSequence
from asyncrl.rollout.shared_gpus import SharedGpus
from asyncrl.serving.fleet import Fleet
from asyncrl.wire.access import Keys
from asyncrl.wire.messages import TakeReply, TakeRequest


@dataclass(frozen=True)
class Takes:
    """One per run."""

    session: TrainerSession
    versions: TrainerVersions
    batches: StepBatches
    journal: Journal
    compaction: Compaction
    fleet: Fleet
    shared_gpus: SharedGpus | None
    """None where the trainer has GPUs of its own."""
    heldout: HeldOutSchedule
    report: StepReport
    responses: StepResponses
    keys: Keys
    waits: Waits
    state: RunPhase
    num_steps: int
    """Steps of the whole training."""
    heldout_rows: Sequence[ScoredSequence] = ()
    """Rows whose loss the trainer measures; it is told them with its first batch."""

    async def close(self) -> None:
        """Ends what is done for a batch that will not be asked for."""
        await self.batches.close()
        await self.responses.close()

    async def answer(self, request: TakeRequest) -> TakeReply:
        """The batch of a step, the end of the run, or the wish for another publication."""
        await self.waits.wait_until(
            lambda: self.state.is_open, owner=TrainersWait.TAKE, blocker="the start of the servers"
        )
        columns = await self.responses.columns(request.version - 1)
        self.session.check_is_newest(request)
        self.report.asked(request, columns)
        # Before servers may generate: no trainer takes a batch of what they would make.
        if request.version >= self.num_steps or self.heldout.reached is not None:
            self.state.end_rollouts()
        else:
            self.state.resume_rollouts()
        if not self.state.is_stopped and self.versions.lacks_publication(request):
            await self.waits.wait_until(
                lambda: not self.heldout.is_on_rollout_servers() or self.state.is_stopped,
                owner=TrainersWait.TAKE,
                blocker="the evaluation of an earlier version",
            )
            return TakeReply(None, must_republish=True)
        await self.versions.take_note(request)
        if request.version == 0 and self.heldout.lacks(0, "before"):
            await self.fleet.weight_owner.until_written(TrainersWait.TAKE)
            first = self.fleet.weight_owner.published()
            await self.heldout.wait(first, "before", unless=self._may_train_meanwhile)
            self.session.check_is_newest(request)
            if self.fleet.weight_owner.wants_publication:
                return self.versions.ask_to_republish()
        if self.state.is_over:
            return self._end_of_run()
        batch, verdicts = await self.batches.give(request)
        if batch is None:
            if self.fleet.weight_owner.wants_publication and not self.state.is_over:
                return self.versions.ask_to_republish()
            return self._end_of_run()
        return await self._give(request, batch, verdicts)

    async def _give(self, request: TakeRequest, batch: Batch, verdicts: dict[str, Any]) -> TakeReply:
        """The reply with a batch: once the take is on disk and a server serves, or all sleep."""
        if self.shared_gpus is not None:
            await self.shared_gpus.hand_to_trainer()
        elif self.versions.publishes_all and not await self._has_server():
            return self.versions.ask_to_republish()
        with self.waits.waiting(TrainersWait.TAKE, "the journal's disk"):
            await self.journal.barrier()
        await self.waits.wait_until(
            lambda: not self.fleet.members.has_late_joiner(),
            owner=TrainersWait.TAKE,
            blocker="a server that joins",
        )
        self.session.check_is_newest(request)
        if self.shared_gpus is not None and self.state.is_stopped:
            # It was waited for meanwhile; the next start gives this batch again.
            return self._end_of_run()
        servers = self.fleet.hand_wire_to_trainer() if self.versions.publishes_all else []
        self.report.given({**batch_metrics(batch), **verdicts})
        # Now, while the trainer is busy: the next barrier is a step away.
        self.responses.begin(request.version)
        self.compaction.run()
        own = [url for url in servers if self.keys.is_own(url)]
        self.batches.given()
        rows = list(self.heldout_rows) if request.step_metrics is None else []
        return TakeReply(batch, servers, dict(self.heldout.accuracies), own_servers=own, heldout_rows=rows)

    async def _has_server(self) -> bool:
        """Waits until one serves; False when none does and the publication may be damaged."""
        await self.waits.wait_until(
            lambda: bool(self.fleet.members.serving()) or self.fleet.weight_owner.wants_publication,
            owner=TrainersWait.TAKE,
            blocker="a serving server",
        )
        return bool(self.fleet.members.serving())

    def _end_of_run(self) -> TakeReply:
        return TakeReply(None, heldout=dict(self.heldout.accuracies))

    def _may_train_meanwhile(self) -> bool:
        """Whether training need not wait for the first evaluation: it has servers of its own, files are
        damaged, or the run was asked to stop."""
        return (
            self.heldout.evaluation_servers is not None
            or self.fleet.weight_owner.wants_publication
            or self.state.is_stopped
        )
