"""The controller's answer to a commit: batches are trained for good, and that is on disk."""

import asyncio
from dataclasses import dataclass

from asyncrl.controller.trainer_session import TrainerSession
from asyncrl.errors import QueueError
from asyncrl.journal.compaction import Compaction
from asyncrl.loops.waits import Waits
from asyncrl.replay.queue import ReplayQueue
from asyncrl.wire.files.copies import TrainerCopies
from asyncrl.wire.files.fetch import FetchFailed
from asyncrl.wire.files.service import is_url
from asyncrl.wire.messages import CommitReply, CommitRequest


@dataclass(frozen=True)
class Commits:
    """One per run."""

    session: TrainerSession
    queue: ReplayQueue
    compaction: Compaction
    copies: TrainerCopies
    waits: Waits

    async def answer(self, request: CommitRequest, wait_seconds: float) -> CommitReply | None:
        """The batches below a version are trained for good, on disk when this returns. A checkpoint on
        another disk is copied first; None when that takes longer than `wait_seconds`."""
        with self.session.faults_end_run():
            folder = await self._checkpoint_here(request, wait_seconds)
            if folder is None:
                return None
            num_groups = self.queue.commit(request.version, folder)
            with self.waits.waiting("commit", "the journal's disk"):
                await self.queue.journal.barrier()
            self.compaction.committed()
        return CommitReply(num_groups)

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
