"""Versions that the trainer makes: what follows from the one that a take names, also when it went back."""

from dataclasses import dataclass
from pathlib import Path

from asyncrl.controller.trainer_session import TrainerSession
from asyncrl.errors import QueueError
from asyncrl.evaluation.schedule import HeldOutSchedule
from asyncrl.journal.statements import trained_tokens
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import TrainersWait, Waits
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.generate import Generator
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.publication import Publication, announced_publication, written
from asyncrl.wire.files.copies import TrainerCopies
from asyncrl.wire.files.service import is_url
from asyncrl.wire.messages import TakeReply, TakeRequest

INTERRUPT_SECONDS = 10.0
"""Longest wait for streams to end after they were aborted."""


@dataclass(eq=False)
class TrainerVersions:
    """One per run."""

    session: TrainerSession
    queue: ReplayQueue
    fleet: Fleet
    generator: Generator
    heldout: HeldOutSchedule
    copies: TrainerCopies
    """Copies of what a trainer on another disk hands out."""
    waits: Waits
    state: RunPhase
    num_steps: int
    """Steps of the whole training."""
    publishes_all: bool = True
    """Whether the trainer publishes each version; else those that an evaluation asks for."""
    _is_asked_to_republish: bool = False

    def ask_to_republish(self) -> TakeReply:
        """The reply for a trainer whose publication may be damaged."""
        self._is_asked_to_republish = True
        return TakeReply(None, must_republish=True)

    def lacks_publication(self, request: TakeRequest) -> bool:
        """Whether an evaluation of the trainer's version waits for weights that it has not published."""
        if not self._is_unpublished(request):
            return False
        version = request.version
        is_first = version == 0 and bool(self.heldout.lacks(0, "before"))
        ends = version >= self.num_steps or self.heldout.reached is not None
        is_last = ends and bool(self.heldout.lacks(version, "after"))
        return is_first or is_last or self._is_evaluated(request)

    async def take_note(self, request: TakeRequest) -> None:
        """Takes note of the trainer's version, once per version even when the take is asked again."""
        if self._is_asked_to_republish:
            self._is_asked_to_republish = False
            self.fleet.weight_owner.renew(self._publication_of(request))
        is_known = self.publishes_all or not request.publication_folder
        if self.queue.version == request.version and is_known and not self.fleet.weight_owner.is_with_trainer:
            return
        if self.queue.version is not None and self._has_lost_versions(request):
            await self._drain_lost_versions()
            self.session.check_is_newest(request)
        if self._is_unpublished(request):
            self.queue.announce(request.version)
            return
        publication = self._publication_of(request)
        if self._is_evaluated(request) and self.heldout.evaluation_servers is not None:
            # Its files are linked at once: the trainer deletes all but the last two.
            publication = await written(publication, self.waits, owner="an evaluation's own server")
            self.session.check_is_newest(request)
        self.queue.announce(request.version)
        if request.trained_tokens:
            self.queue.journal.write(*trained_tokens(request.trained_tokens, request.version - 1))
        if self.publishes_all:
            await self.fleet.announce(publication, request.published)
        else:
            self.fleet.serve_only(publication)
        self.state.release_streams()
        if self._is_evaluated(request):
            self.heldout.start(publication, "during")

    def _is_unpublished(self, request: TakeRequest) -> bool:
        return not self.publishes_all and not request.publication_folder

    def _is_evaluated(self, request: TakeRequest) -> bool:
        return self.heldout.is_due(request.version, self.num_steps)

    def _has_lost_versions(self, request: TakeRequest) -> bool:
        """Whether this trainer does not know of a version that its predecessor made, or was making."""
        assert self.queue.version is not None
        return request.version < self.queue.highest_version or (
            self.fleet.weight_owner.is_with_trainer and request.version == self.queue.version
        )

    async def _drain_lost_versions(self) -> None:
        """Before a trainer that went back publishes: nothing may stream on, as versions never decrease.

        Streams stay held until the trainer's version is announced, which tells what may stream again.
        """
        self.state.hold_streams()
        if await self.generator.interrupt(timeout_seconds=INTERRUPT_SECONDS, has_lost_trainer=True):
            return
        for url in dict.fromkeys(server.url for server in self.generator.running.values()):
            self.fleet.members.fail(self.fleet.members.servers[url], "its streams did not end after an abort")
        await self.waits.wait_until(
            lambda: not self.generator.running,
            owner=TrainersWait.TAKE,
            blocker="streams of a policy that was lost",
        )

    def _publication_of(self, request: TakeRequest) -> Publication:
        place = request.publication_folder
        if is_url(place):
            folder = self.copies.publication(request.version)
            return Publication(
                request.version, folder, {}, lambda: self.copies.begin_publication(place, folder)
            )
        try:
            return announced_publication(request.version, Path(place))
        except (OSError, ValueError, KeyError) as error:
            raise QueueError(f"publication {place} cannot be read: {error}") from error
