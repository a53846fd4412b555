"""The controller's answers to the trainer: a batch per take, servers that are idle, a commit on disk.

Owns who is answered: of two trainers that wait (one died and left its request) the newest alone. Everything
that is answered is in the journal first.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.errors import QueueError
from asyncrl.evaluation.schedule import HeldOutSchedule
from asyncrl.journal.batches import load_batch
from asyncrl.journal.compaction import Compaction
from asyncrl.recipe import Recipe
from asyncrl.records import Batch
from asyncrl.replay.group import Group, batch_of
from asyncrl.replay.policy import length_bias
from asyncrl.replay.replay_queue import ReplayQueue
from asyncrl.replay.wire import CommitReply, CommitRequest, DrainRequest, TakeReply, TakeRequest
from asyncrl.rollout.drain import Drain
from asyncrl.rollout.generate import Generator
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.publication import Publication, read_publication
from asyncrl.step_metrics import StepReport, batch_metrics, group_metrics, staleness_metrics
from asyncrl.waits import Waits
from asyncrl.zero_reward import ZeroReward

T = TypeVar("T")

INTERRUPT_SECONDS = 10.0
"""Longest wait for streams to end after they were aborted."""


class TakeDesk:
    """One per run. `take`, `drain` and `commit` are what `QueueService` calls."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        queue: ReplayQueue,
        fleet: Fleet,
        generator: Generator,
        heldout: HeldOutSchedule,
        report: StepReport,
        zero_reward: ZeroReward,
        waits: Waits,
        fail: Callable[[Exception], None],
        is_resumed: bool,
    ) -> None:
        """`fail` ends the run with an error that came up while the trainer was answered."""
        self._recipe = recipe
        self._queue = queue
        self._fleet = fleet
        self._generator = generator
        self._drain = Drain(queue, fleet, generator, waits)
        self._heldout = heldout
        self._report = report
        self._zero_reward = zero_reward
        self._waits = waits
        self._fail = fail
        self._compaction = Compaction(
            queue.journal,
            keep_steps=recipe.replay.keep_steps,
            keep_checkpoints=recipe.trainer.keep_checkpoints,
            repeat_reach=recipe.rollout.max_staleness if recipe.replay.repeated_groups_per_batch else 0,
        )
        self._is_resumed = is_resumed
        self._newest_take: TakeRequest | None = None
        """Older requests that still wait here came from a trainer that is gone."""
        self._is_asked_to_republish = False
        self.is_open = False
        """While the controller's loops run; a take waits for it."""
        self.is_over = False
        """The trainer was or will be told that there is no further batch."""
        self.num_waiting = 0
        """Takes and drains: in both the trainer waits for the rollout side."""
        self.num_asked = 0
        """Takes and drains so far, repeated ones included."""

    def end(self) -> None:
        """The trainer is given no further batch."""
        self.is_over = True
        self._waits.notify()

    async def take(self, request: TakeRequest, wait_seconds: float) -> TakeReply | None:
        """The batch of a step, or the end of the run; None when it takes longer than `wait_seconds`."""
        self._newest_take = request
        self._waits.notify()
        return await self._answer(self._take(request), wait_seconds)

    async def drain(self, request: DrainRequest, wait_seconds: float) -> bool:
        """True when the servers are idle, False when that takes longer than `wait_seconds`."""
        return await self._answer(self._drained(request), wait_seconds) is not None

    async def commit(self, request: CommitRequest) -> CommitReply:
        """The batches below a version are trained for good, on disk when this returns."""
        try:
            num_groups = self._queue.commit(request.version, request.checkpoint_folder)
            await self._queue.journal.barrier()
            self._compaction.committed()
        except Exception as error:
            self._fail(error)
            raise
        return CommitReply(num_groups)

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
            self._fail(error)
            raise
        finally:
            self.num_waiting -= 1

    async def _drained(self, request: DrainRequest) -> bool:
        await self._drain.run(request.version)
        return True

    async def _take(self, request: TakeRequest) -> TakeReply:
        await self._waits.wait_until(lambda: self.is_open, owner="take", blocker="the start of the servers")
        self._check_is_newest(request)
        self._report.asked(request)
        await self._announce(request)
        if request.step == 0 and not self._is_resumed:
            await self._heldout.wait(self._fleet.published(), "before", unless=self._may_train_beside)
            self._check_is_newest(request)
            if self._fleet.wants_publication:
                return self._ask_to_republish()
        if request.step >= self._recipe.trainer.num_steps or self.is_over:
            self.end()
            return TakeReply(None, heldout=dict(self._heldout.accuracies))
        batch, verdicts = await self._batch(request)
        if batch is None and self._fleet.wants_publication and not self.is_over:
            return self._ask_to_republish()
        if batch is None:
            return TakeReply(None, heldout=dict(self._heldout.accuracies))
        await self._waits.wait_until(
            lambda: bool(self._fleet.serving()) or self._fleet.wants_publication,
            owner="take",
            blocker="a serving server",
        )
        if not self._fleet.serving():
            return self._ask_to_republish()
        with self._waits.waiting("take", "the journal's disk"):
            await self._queue.journal.barrier()
        await self._waits.wait_until(
            lambda: not self._fleet.has_late_joiner(), owner="take", blocker="a server that joins"
        )
        self._check_is_newest(request)
        servers = self._fleet.hand_wire_to_trainer()
        self._report.given({**batch_metrics(batch), **verdicts})
        # Now, while the trainer is busy: the next barrier is a step away.
        self._compaction.run()
        return TakeReply(batch, servers, dict(self._heldout.accuracies))

    def _ask_to_republish(self) -> TakeReply:
        self._is_asked_to_republish = True
        return TakeReply(None, must_republish=True)

    def _may_train_beside(self) -> bool:
        """Whether nobody waits for the first evaluation: it has servers of its own, or files are damaged."""
        return self._heldout.pinned is not None or self._fleet.wants_publication

    async def _announce(self, request: TakeRequest) -> None:
        """Takes note of the trainer's version, once per version even when the take is asked again."""
        if self._is_asked_to_republish:
            self._is_asked_to_republish = False
            self._fleet.renew(_publication_of(request))
        if self._queue.version == request.step and not self._fleet.trainer_owns_wire:
            return
        if self._queue.version is not None and self._has_lost_versions(request):
            await self._drain_lost_versions()
            self._check_is_newest(request)
        publication = _publication_of(request)
        self._queue.announce(request.step)
        await self._fleet.announce(publication, request.published)
        self._generator.is_held = False
        if self._heldout.is_due(request.step, self._recipe.trainer.num_steps):
            self._heldout.start(publication, "during")

    def _is_newest(self, request: TakeRequest) -> bool:
        """A trainer that died leaves its request waiting here; it must not act along with its successor's."""
        return request is self._newest_take

    def _check_is_newest(self, request: TakeRequest) -> None:
        if not self._is_newest(request):
            raise QueueError(f"The take of step {request.step} was given up: another one came after it.")

    def _has_lost_versions(self, request: TakeRequest) -> bool:
        """Whether this trainer does not know of a version that its predecessor made, or was making."""
        assert self._queue.version is not None
        return request.step < self._queue.highest_version or (
            self._fleet.trainer_owns_wire and request.step == self._queue.version
        )

    async def _batch(self, request: TakeRequest) -> tuple[Batch | None, dict[str, Any]]:
        """The batch of the step and what its verdicts say; None when the run stops meanwhile."""
        step, temperature = request.step, self._recipe.rollout.temperature
        if step < self._queue.num_steps_taken:
            await self._queue.journal.barrier()
            return load_batch(self._queue.journal, step, temperature), {}
        taken: list[Group] = []

        def try_take() -> bool:
            is_asked = not self.is_over and self._is_newest(request)
            if is_asked and not taken and step == self._queue.num_steps_taken:
                taken.extend(self._queue.take(step) or [])
            return bool(taken) or not is_asked or self._fleet.wants_publication

        await self._waits.wait_until(try_take, owner="take", blocker=f"groups for step {step}")
        self._check_is_newest(request)
        if not taken:
            return None, {}
        new = [group for group in taken if group.taken_version == step]
        self._zero_reward.taken(new)
        aborted, self._queue.aborted_lengths = self._queue.aborted_lengths, []
        bias = length_bias(new, self._queue.live.values(), aborted) | staleness_metrics(taken, self._queue)
        uses = {"repeated_groups": len(taken) - len(new), "replay_ratio": len(taken) / len(new)}
        return batch_of(taken, step, temperature), {
            **group_metrics(new, self._queue.has_signal),
            **bias,
            **uses,
        }

    async def _drain_lost_versions(self) -> None:
        """Before a trainer that went back publishes: nothing may stream on, as versions never decrease.

        Streams stay held until the trainer's version is announced, which tells who may stream again.
        """
        self._generator.is_held = True
        if await self._generator.interrupt(timeout_seconds=INTERRUPT_SECONDS, has_lost_trainer=True):
            return
        for url in dict.fromkeys(server.url for server in self._generator.running.values()):
            self._fleet.fail(self._fleet.servers[url], "its streams did not end after an abort")
        await self._waits.wait_until(
            lambda: not self._generator.running, owner="take", blocker="streams of a policy that was lost"
        )


def _publication_of(request: TakeRequest) -> Publication:
    try:
        return read_publication(Path(request.publication_folder))
    except (OSError, ValueError, KeyError) as error:
        raise QueueError(f"publication {request.publication_folder} cannot be read: {error}") from error
