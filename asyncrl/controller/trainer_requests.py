"""The controller's answers to the trainer: a batch per take, servers that are idle, a commit on disk.

Every answer is in the journal before it is given.
"""

from dataclasses import dataclass

from asyncrl.controller.commits import Commits
from asyncrl.controller.takes import Takes
from asyncrl.controller.trainer_session import TrainerSession
from asyncrl.rollout.drain import Drain
from asyncrl.wire.messages import CommitReply, CommitRequest, DrainRequest, TakeReply, TakeRequest


@dataclass(frozen=True)
class TrainerRequests:
    """One per run: what `ControllerService` calls."""

    session: TrainerSession
    takes: Takes
    drainer: Drain
    commits: Commits

    async def take(self, request: TakeRequest, wait_seconds: float) -> TakeReply | None:
        """The batch of a step, or the end of the run; None when it takes longer than `wait_seconds`."""
        self.session.begin(request)
        return await self.session.answer(self.takes.answer(request), wait_seconds)

    async def drain(self, request: DrainRequest, wait_seconds: float) -> bool:
        """True when the servers are idle, False when that takes longer than `wait_seconds`."""
        return await self.session.answer(self._drained(request), wait_seconds) is not None

    async def commit(self, request: CommitRequest, wait_seconds: float) -> CommitReply | None:
        """The batches below a version are trained for good, on disk when this returns; None when a checkpoint
        on another disk takes longer than `wait_seconds` to come."""
        return await self.commits.answer(request, wait_seconds)

    async def close(self) -> None:
        """Ends what is done for a batch that will not be asked for."""
        await self.takes.close()

    async def _drained(self, request: DrainRequest) -> bool:
        await self.drainer.run(request.version)
        return True
