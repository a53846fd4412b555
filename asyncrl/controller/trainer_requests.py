"""The controller's answers to the trainer: a batch per take, servers that are idle, a commit on disk.

Of two trainers that wait (one died and left its request) only the newest is answered. Every answer
is in the journal before it is given.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.controller.dropped_groups import DroppedGroups
from asyncrl.controller.prometheus import RunMetrics
from asyncrl.controller.step_metrics import StepReport, batch_metrics, group_metrics, staleness_metrics
from asyncrl.errors import QueueError, Superseded
from asyncrl.evaluation.schedule import HeldOutSchedule
from asyncrl.journal.batches import load_groups
from asyncrl.journal.compaction import Compaction
from asyncrl.journal.statements import trained_tokens
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.task_group import end_tasks
from asyncrl.loops.waits import Blocker, BlockerKind, TrainersWait, Waits
from asyncrl.recipe import Recipe
from asyncrl.records import Batch, PolicyVersion, ScoredSequence
from asyncrl.replay.group import Group, sequences_of
from asyncrl.replay.policy import length_bias
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.drain import Drain
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.shared_gpus import SharedGpus
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.publication import Publication, announced_publication, written
from asyncrl.wire.files.copies import TrainerCopies
from asyncrl.wire.files.fetch import FetchFailed
from asyncrl.wire.files.service import is_url
from asyncrl.wire.messages import CommitReply, CommitRequest, DrainRequest, TakeReply, TakeRequest

T = TypeVar("T")

INTERRUPT_SECONDS = 10.0
"""Longest wait for streams to end after they were aborted."""
SLICE_SECONDS = 1.0
"""How long a batch is collected before streams are read again. Servers whose streams are not read look
silent; but where thousands stream, each turn of theirs takes seconds."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A batch on its way: one of millions of tokens takes longer than a trainer waits for one answer."""

    step: PolicyVersion
    work: "asyncio.Task[tuple[Batch, dict[str, Any]]]"


@dataclass(eq=False, kw_only=True)
class TrainerRequests:
    """One per run. `take`, `drain` and `commit` are what `ControllerService` calls."""

    recipe: Recipe
    queue: ReplayQueue
    fleet: Fleet
    generator: Generator
    drainer: Drain
    heldout: HeldOutSchedule
    report: StepReport
    metrics: RunMetrics
    dropped_groups: DroppedGroups
    compaction: Compaction
    waits: Waits
    state: RunPhase
    copies: TrainerCopies
    """Copies of what a trainer on another disk hands out."""
    shared_gpus: SharedGpus | None
    """None where the trainer has GPUs of its own."""
    is_own_server: Callable[[str], bool]
    """Whether a URL is that of a process of the run."""
    num_waiting: int = 0
    """Takes and drains: in both the trainer waits for the rollout side."""
    num_asked: int = 0
    """Takes and drains so far, repeated ones included."""
    _newest_take: TakeRequest | None = None
    """Older requests that still wait here came from a trainer that is gone."""
    _is_asked_to_republish: bool = False
    _prepared: _Prepared | None = None
    """Until it is given, however often it is asked for."""

    async def take(self, request: TakeRequest, wait_seconds: float) -> TakeReply | None:
        """The batch of a step, or the end of the run; None when it takes longer than `wait_seconds`."""
        self._newest_take = request
        self.waits.notify()
        return await self._answer(self._take(request), wait_seconds)

    async def drain(self, request: DrainRequest, wait_seconds: float) -> bool:
        """True when the servers are idle, False when that takes longer than `wait_seconds`."""
        return await self._answer(self._drained(request), wait_seconds) is not None

    async def commit(self, request: CommitRequest, wait_seconds: float) -> CommitReply | None:
        """The batches below a version are trained for good, on disk when this returns. A checkpoint on
        another disk is copied first; None when that takes longer than `wait_seconds`."""
        try:
            folder = await self._checkpoint_here(request, wait_seconds)
            if folder is None:
                return None
            num_groups = self.queue.commit(request.version, folder)
            with self.waits.waiting("commit", "the journal's disk"):
                await self.queue.journal.barrier()
            self.compaction.committed()
        except QueueError:
            raise
        except Exception as error:
            self.state.fail(error)
            raise
        return CommitReply(num_groups)

    async def close(self) -> None:
        """Ends the collection of a batch that will not be asked for."""
        if self._prepared is not None:
            await end_tasks(self._prepared.work)

    async def _checkpoint_here(self, request: CommitRequest, wait_seconds: float) -> str | None:
        """Its folder on this machine; None when it takes longer to come. Raises QueueError when it does not
        come: the trainer's node may be lost, which ends no run."""
        if not is_url(request.checkpoint_folder):
            return request.checkpoint_folder
        try:
            async with asyncio.timeout(wait_seconds):
                with self.waits.waiting("commit", "the copy of a checkpoint from the trainer's node"):
                    return str(await self.copies.checkpoint(request.checkpoint_folder, request.version))
        except TimeoutError:
            return None
        except FetchFailed as error:
            raise QueueError(
                f"The checkpoint of version {request.version} was not copied: {error}"
            ) from error

    async def _answer(self, work: Awaitable[T], wait_seconds: float) -> T | None:
        self.num_waiting += 1
        self.num_asked += 1
        try:
            async with asyncio.timeout(wait_seconds):
                return await work
        except TimeoutError:
            return None
        except QueueError:
            raise
        except Exception as error:
            self.state.fail(error)
            raise
        finally:
            self.num_waiting -= 1

    async def _drained(self, request: DrainRequest) -> bool:
        await self.drainer.run(request.version)
        return True

    async def _take(self, request: TakeRequest) -> TakeReply:
        await self.waits.wait_until(
            lambda: self.state.is_open, owner=TrainersWait.TAKE, blocker="the start of the servers"
        )
        self._check_is_newest(request)
        self.report.asked(request)
        # Before servers may generate: no trainer takes a batch of what they would make.
        if request.step >= self.recipe.trainer.num_steps or self.heldout.reached is not None:
            self.state.end_rollouts()
        else:
            self.state.resume_rollouts()
        await self._announce(request)
        if request.step == 0 and self.heldout.lacks(0, "before"):
            first = await self.fleet.until_written(TrainersWait.TAKE)
            await self.heldout.wait(first, "before", unless=self._may_train_meanwhile)
            self._check_is_newest(request)
            if self.fleet.wants_publication:
                return self._ask_to_republish()
        if self.state.is_over:
            return self._end_of_run()
        batch, verdicts = await self._batch(request)
        if batch is None:
            if self.fleet.wants_publication and not self.state.is_over:
                return self._ask_to_republish()
            return self._end_of_run()
        return await self._give(request, batch, verdicts)

    async def _give(self, request: TakeRequest, batch: Batch, verdicts: dict[str, Any]) -> TakeReply:
        """The reply with a batch: once the take is on disk and a server serves, or all sleep."""
        if self.shared_gpus is not None:
            await self.shared_gpus.hand_to_trainer()
        elif not await self._has_server():
            return self._ask_to_republish()
        with self.waits.waiting(TrainersWait.TAKE, "the journal's disk"):
            await self.queue.journal.barrier()
        await self.waits.wait_until(
            lambda: not self.fleet.has_late_joiner(), owner=TrainersWait.TAKE, blocker="a server that joins"
        )
        self._check_is_newest(request)
        if self.shared_gpus is not None and self.state.is_stopped:
            # It was waited for meanwhile; the next start gives this batch again.
            return self._end_of_run()
        servers = self.fleet.hand_wire_to_trainer()
        self.report.given({**batch_metrics(batch), **verdicts})
        # Now, while the trainer is busy: the next barrier is a step away.
        self.compaction.run()
        own = [url for url in servers if self.is_own_server(url)]
        self._prepared = None
        return TakeReply(batch, servers, dict(self.heldout.accuracies), own_servers=own)

    async def _has_server(self) -> bool:
        """Waits until one serves; False when none does and the publication may be damaged."""
        await self.waits.wait_until(
            lambda: bool(self.fleet.serving()) or self.fleet.wants_publication,
            owner=TrainersWait.TAKE,
            blocker="a serving server",
        )
        return bool(self.fleet.serving())

    def _end_of_run(self) -> TakeReply:
        return TakeReply(None, heldout=dict(self.heldout.accuracies))

    def _ask_to_republish(self) -> TakeReply:
        self._is_asked_to_republish = True
        return TakeReply(None, must_republish=True)

    def _may_train_meanwhile(self) -> bool:
        """Whether training need not wait for the first evaluation: it has servers of its own, files are
        damaged, or the run was asked to stop."""
        return self.heldout.pinned is not None or self.fleet.wants_publication or self.state.is_stopped

    async def _announce(self, request: TakeRequest) -> None:
        """Takes note of the trainer's version, once per version even when the take is asked again."""
        if self._is_asked_to_republish:
            self._is_asked_to_republish = False
            self.fleet.renew(self._publication_of(request))
        if self.queue.version == request.step and not self.fleet.trainer_owns_wire:
            return
        if self.queue.version is not None and self._has_lost_versions(request):
            await self._drain_lost_versions()
            self._check_is_newest(request)
        publication = self._publication_of(request)
        if self._is_evaluated(request) and self.heldout.pinned is not None:
            # Its files are linked at once: the trainer deletes all but the last two.
            publication = await written(publication, self.waits, owner="an evaluation's own server")
            self._check_is_newest(request)
        self.queue.announce(request.step)
        if request.trained_tokens:
            self.queue.journal.write(*trained_tokens(request.trained_tokens, request.step - 1))
        await self.fleet.announce(publication, request.published)
        self.state.release_streams()
        if self._is_evaluated(request):
            self.heldout.start(publication, "during")

    def _is_evaluated(self, request: TakeRequest) -> bool:
        return self.heldout.is_due(request.step, self.recipe.trainer.num_steps)

    def _is_newest(self, request: TakeRequest) -> bool:
        """A trainer that died leaves its request waiting here; it must not act along with its successor's."""
        return request is self._newest_take

    def _check_is_newest(self, request: TakeRequest) -> None:
        if not self._is_newest(request):
            raise Superseded(f"The take of step {request.step + 1} was given up: another one came after it.")

    def _has_lost_versions(self, request: TakeRequest) -> bool:
        """Whether this trainer does not know of a version that its predecessor made, or was making."""
        assert self.queue.version is not None
        return request.step < self.queue.highest_version or (
            self.fleet.trainer_owns_wire and request.step == self.queue.version
        )

    async def _batch(self, request: TakeRequest) -> tuple[Batch | None, dict[str, Any]]:
        """The batch of the step and what its verdicts say; None when the run stops meanwhile."""
        step = request.step
        if self._prepared is None or self._prepared.step != step:
            if step < self.queue.num_steps_taken:
                work = self._read_back(step)
            elif taken := await self._groups(request):
                # The next request for this step gets the same.
                work = self._collect(step, map(sequences_of, taken), self._metrics_of(taken, step))
            else:
                return None, {}
            self._prepared = _Prepared(step, asyncio.create_task(work, name=f"batch of step {step}"))
        found = await asyncio.shield(self._prepared.work)
        self._check_is_newest(request)
        return found

    async def _groups(self, request: TakeRequest) -> list[Group]:
        """Taken from the queue for the step; none when the run stops meanwhile."""
        step = request.step
        taken: list[Group] = []

        def try_take() -> bool:
            is_asked = not self.state.is_over and self._is_newest(request)
            if is_asked and not taken and step == self.queue.num_steps_taken:
                taken.extend(self.queue.take(step) or [])
            return bool(taken) or not is_asked or self.fleet.wants_publication

        await self.waits.wait_until(
            try_take, owner=TrainersWait.TAKE, blocker=Blocker(BlockerKind.GROUPS, str(step + 1))
        )
        if not taken:
            self._check_is_newest(request)
        return taken

    async def _read_back(self, step: PolicyVersion) -> tuple[Batch, dict[str, Any]]:
        """The batch as an earlier take was given it."""
        with self.waits.waiting(TrainersWait.TAKE, "the journal's disk"):
            await self.queue.journal.barrier()
        return await self._collect(step, load_groups(self.queue.journal, step), {})

    async def _collect(
        self, step: PolicyVersion, groups: Iterable[list[ScoredSequence]], verdicts: dict[str, Any]
    ) -> tuple[Batch, dict[str, Any]]:
        sequences: list[ScoredSequence] = []
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for group in groups:
            sequences += group
            if loop.time() - begun > SLICE_SECONDS:
                await asyncio.sleep(0)
                begun = loop.time()
        return Batch(step, self.recipe.rollout.temperature, sequences), verdicts

    def _metrics_of(self, taken: list[Group], step: int) -> dict[str, Any]:
        """Metrics of the groups of a new batch before it is trained."""
        new = [group for group in taken if group.taken_version == step]
        self.dropped_groups.taken(new, step + 1)
        for group in new:
            self.metrics.took(step - group.oldest_version())
        return {
            **group_metrics(new, self.queue.has_signal),
            **length_bias(new, self.queue.live.values(), self.queue.pop_aborted_lengths()),
            **staleness_metrics(taken, self.queue),
            "repeated_groups": len(taken) - len(new),
            "replay_ratio": len(taken) / len(new),
        }

    async def _drain_lost_versions(self) -> None:
        """Before a trainer that went back publishes: nothing may stream on, as versions never decrease.

        Streams stay held until the trainer's version is announced, which tells what may stream again.
        """
        self.state.hold_streams()
        if await self.generator.interrupt(timeout_seconds=INTERRUPT_SECONDS, has_lost_trainer=True):
            return
        for url in dict.fromkeys(server.url for server in self.generator.running.values()):
            self.fleet.fail(self.fleet.servers[url], "its streams did not end after an abort")
        await self.waits.wait_until(
            lambda: not self.generator.running,
            owner=TrainersWait.TAKE,
            blocker="streams of a policy that was lost",
        )

    def _publication_of(self, request: TakeRequest) -> Publication:
        place = request.publication_folder
        if is_url(place):
            folder = self.copies.publication(request.step)
            return Publication(request.step, folder, {}, lambda: self.copies.begin_publication(place, folder))
        try:
            return announced_publication(request.step, Path(place))
        except (OSError, ValueError, KeyError) as error:
            raise QueueError(f"publication {place} cannot be read: {error}") from error
