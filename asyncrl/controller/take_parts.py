"""The features that act while a take is answered, each a `TakePart`; `assemble` lists those of a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.controller.context import RunContext
from asyncrl.controller.trainer_wire import TakePart
from asyncrl.evaluation.schedule import HeldOutSchedule
from asyncrl.journal.compaction import Compaction
from asyncrl.journal.starts import RunEnd
from asyncrl.loops import RunPart, TrainersWait
from asyncrl.observe.metrics.batch_columns import batch_metrics
from asyncrl.observe.metrics.step_metrics import StepReport, StepResponses
from asyncrl.records import Batch, PolicyVersion, ScoredSequence
from asyncrl.rollout.drain import Drain
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.publication import Publication, WeightOwner, written
from asyncrl.wire.messages import TakeReply, TakeRequest


@dataclass(frozen=True)
class ReportedSteps(TakePart):
    """The row of each step in metrics.jsonl: opened by one take, closed by the next."""

    context: RunContext
    report: StepReport
    responses: StepResponses

    async def asked(self, request: TakeRequest) -> None:
        columns: Mapping[str, Any] = await self.responses.columns(request.version - 1)
        self.context.session.check_is_newest(request)
        self.context.session.num_steps += self.report.asked(request, columns)

    def given(self, batch: Batch, columns: dict[str, Any]) -> None:
        self.report.given({**batch_metrics(batch), **columns})
        # Now, while the trainer is busy: the next barrier is a step away.
        self.responses.begin(batch.taken_version)

    async def close(self) -> None:
        await self.responses.close()


@dataclass(frozen=True)
class Evaluations(TakePart, RunPart):
    """Evaluations before the first step, during training and after it; the accuracy that ends a run."""

    context: RunContext
    heldout: HeldOutSchedule
    weight_owner: WeightOwner
    num_steps: int

    def ends_training(self) -> bool:
        return self.heldout.reached is not None

    def needs_publication(self, request: TakeRequest, *, is_last: bool) -> bool:
        version = request.version
        lacks_first = version == 0 and bool(self.heldout.lacks(0, "before"))
        lacks_last = is_last and bool(self.heldout.lacks(version, "after"))
        return lacks_first or lacks_last or self._is_due(request)

    async def before_publish(self) -> None:
        await self.context.waits.wait_until(
            lambda: not self.heldout.is_on_rollout_servers() or self.context.state.is_stopped,
            owner=TrainersWait.TAKE,
            blocker="the evaluation of an earlier version",
        )

    async def before_announce(self, publication: Publication, request: TakeRequest) -> Publication:
        if not self._is_due(request) or self.heldout.evaluation_servers is None:
            return publication
        # Its files are linked at once: the trainer deletes all but the last two.
        return await written(publication, self.context.waits, owner="an evaluation's own server")

    def announced(self, publication: Publication, request: TakeRequest) -> None:
        if self._is_due(request):
            self.heldout.start(publication, "during")

    async def before_batch(self, request: TakeRequest) -> bool:
        if request.version != 0 or not self.heldout.lacks(0, "before"):
            return False
        await self.weight_owner.until_written(TrainersWait.TAKE)
        await self.heldout.wait(self.weight_owner.published(), "before", unless=self._may_train_meanwhile)
        return True

    def complete(self, request: TakeRequest, reply: TakeReply) -> None:
        reply.heldout.update(self.heldout.accuracies)

    async def after_training(self, version: PolicyVersion) -> None:
        if not self.context.state.is_stopped and self.heldout.lacks(version, "after"):
            await self.weight_owner.until_written(TrainersWait.EVALUATION)
            last = self.weight_owner.published()
            await self.heldout.wait(last, "after", unless=lambda: self.context.state.is_stopped)

    def end_reached(self, version: PolicyVersion) -> RunEnd | None:
        reached = self.heldout.reached
        if reached is None:
            return None
        return RunEnd(version=version, reason="stop_at_accuracy", accuracy=reached)

    def lacks(self, version: PolicyVersion) -> bool:
        return bool(self.heldout.lacks(version, "after"))

    async def close(self) -> None:
        await self.heldout.close()

    def _is_due(self, request: TakeRequest) -> bool:
        return self.heldout.is_due(request.version, self.num_steps)

    def _may_train_meanwhile(self) -> bool:
        """Whether training need not wait for the first evaluation: it has servers of its own, files are
        damaged, or the run was asked to stop."""
        return (
            self.heldout.evaluation_servers is not None
            or self.weight_owner.wants_publication
            or self.context.state.is_stopped
        )


@dataclass(frozen=True)
class SharedGpus(TakePart):
    """Servers and trainer on the same GPUs (placement.colocated): the trainer's from the reply with a batch
    until its next take, the servers' in between.

    A take announces a version, which wakes the servers: they join with it, as after any absence. Before the
    reply they sleep. What is in flight then is aborted and resumes from its prefix, or with rollout.interrupt
    drain it ends first; a running evaluation ends first too, so that it has one version.

    Tools and agents need no GPU: with continue, retract and abort they work on while the servers sleep, an
    answer that comes meanwhile is recorded, and its trajectory's next turn waits for the servers; an agent's
    own time stands still in that wait. With drain the servers sleep only once all turns of what has begun
    have ended.
    """

    context: RunContext
    fleet: Fleet
    drainer: Drain
    is_evaluating: Callable[[], bool]
    """Whether an evaluation runs on the servers."""
    ends_with_its_version: bool
    """Whether trajectories end before the next version (rollout.interrupt: drain)."""

    async def before_reply(self) -> None:
        """Returns when no server holds memory. May be canceled and called again."""
        await self._wait(lambda: not self.is_evaluating(), "an evaluation, before the servers sleep")
        if self.ends_with_its_version:
            self.fleet.router.start_drain()
            await self._wait(self.drainer.is_idle, "trajectories in flight, before the servers sleep")
        await self.fleet.sleep()

    def withholds(self) -> bool:
        # The servers were waited for meanwhile.
        return self.context.state.is_stopped

    async def _wait(self, is_over: Callable[[], bool], blocker: str) -> None:
        """A run that was asked to stop waits for nothing here."""
        await self.context.waits.wait_until(
            lambda: self.context.state.is_stopped or is_over(), owner=TrainersWait.TAKE, blocker=blocker
        )


@dataclass(frozen=True)
class CompactedJournal(TakePart):
    """The journal gives up tokens that nothing asks for again, where it has time: after a take."""

    compaction: Compaction

    def given(self, batch: Batch, columns: dict[str, Any]) -> None:
        self.compaction.run()

    def committed(self) -> None:
        self.compaction.committed()


@dataclass(frozen=True)
class MeasuredRows(TakePart):
    """Held-out rows whose loss the trainer measures; it is told them with its first batch."""

    rows: Sequence[ScoredSequence]

    def complete(self, request: TakeRequest, reply: TakeReply) -> None:
        if reply.batch is not None and request.step_metrics is None:
            reply.heldout_rows.extend(self.rows)
