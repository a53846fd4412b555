"""The controller's answers to the trainer (wire 2): a batch per take, idle servers, a commit on disk.

Every answer is in the journal before it is given, and a take that is asked again gets the same batch.
Features that act while a take is answered are `TakePart`s; this file knows none of them.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.controller.context import RunContext
from asyncrl.errors import QueueError
from asyncrl.journal.packing import sequences_of
from asyncrl.journal.queue_state import load_groups, read_columns
from asyncrl.journal.statements import batch_columns, trained_tokens
from asyncrl.loops import Blocker, BlockerKind, TrainersWait, end_tasks
from asyncrl.records import Batch, PolicyVersion, ScoredSequence
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.drain import Drain
from asyncrl.rollout.generate import Generator
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.publication import Publication, announced_publication
from asyncrl.wire.access import Keys
from asyncrl.wire.fetch import FetchFailed, TrainerCopies
from asyncrl.wire.file_service import is_url
from asyncrl.wire.messages import CommitRequest, DrainRequest, TakeReply, TakeRequest

INTERRUPT_SECONDS = 10.0
"""Longest wait for streams to end after they were aborted."""
SLICE_SECONDS = 1.0
"""How long a batch is collected before streams are read again. Servers whose streams are not read look
silent; but where thousands stream, each turn of theirs takes seconds."""


class TakePart:
    """A feature that acts while a take is answered. Stages come in this order; a part overrides its own.

    Every stage may come again for the same version: a trainer that waits asks again, one that died asks for
    an earlier version. Parts act in the order in which the controller lists them.
    """

    async def asked(self, request: TakeRequest) -> None:
        """The trainer has finished the step before and asks for the batch of `request.version`."""

    def ends_training(self) -> bool:
        """Whether training ends before its last step."""
        return False

    def needs_publication(self, request: TakeRequest, *, is_last: bool) -> bool:
        """Whether the part needs the weights of a version that the trainer did not publish."""
        return False

    async def before_publish(self) -> None:
        """Returns once servers may get other weights than they have."""

    async def before_announce(self, publication: Publication, request: TakeRequest) -> Publication:
        """The publication of a new version, before servers or the queue hear of it."""
        return publication

    def announced(self, publication: Publication, request: TakeRequest) -> None:
        """Servers were told the version."""

    async def before_batch(self, request: TakeRequest) -> bool:
        """Whether the part made the trainer wait, before anything is taken from the queue."""
        return False

    async def before_reply(self) -> None:
        """A batch is there. Returns once the trainer may have it."""

    def withholds(self) -> bool:
        """Whether the trainer may not have the batch after all; the next start gives it again."""
        return False

    def given(self, batch: Batch, columns: dict[str, Any]) -> None:
        """The trainer gets `batch`; `columns` are what was measured of it."""

    def complete(self, request: TakeRequest, reply: TakeReply) -> None:
        """Adds to a reply what only the part knows."""

    def committed(self) -> None:
        """A commit is on disk."""

    async def close(self) -> None:
        """Ends what is done for a batch that will not be asked for."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A batch on its way: one of millions of tokens takes longer than a trainer waits for one answer."""

    version: PolicyVersion
    work: "asyncio.Task[tuple[Batch, dict[str, Any]]]"


@dataclass(eq=False, kw_only=True)
class TrainerWire:
    """One per run: what `ControllerService` calls."""

    context: RunContext
    queue: ReplayQueue
    fleet: Fleet
    generator: Generator
    drainer: Drain
    copies: TrainerCopies
    """Copies of what a trainer on another disk hands out."""
    keys: Keys
    parts: Sequence[TakePart] = ()
    columns: Callable[[list[Group], PolicyVersion], dict[str, Any]] = lambda taken, version: {}
    """Columns of the groups of a new batch, before it is trained."""
    num_steps: int
    """Steps of the whole training."""
    temperature: float
    """Rollouts were sampled at it."""
    publishes_all: bool = True
    """Whether the trainer publishes each version; else those that a part needs."""
    serves_while_training: bool = True
    """Whether servers serve while the trainer has a batch."""
    _prepared: _Prepared | None = None
    """Until it is given, however often it is asked for."""
    _is_asked_to_republish: bool = False

    async def take(self, request: TakeRequest, wait_seconds: float) -> TakeReply | None:
        """The batch of a step, or the end of the run; None when it takes longer than `wait_seconds`."""
        self.context.session.begin(request)
        return await self.context.session.answer(self._answer(request), wait_seconds)

    async def drain(self, request: DrainRequest, wait_seconds: float) -> bool:
        """True when the servers are idle, False when that takes longer than `wait_seconds`."""

        async def drained() -> bool:
            await self.drainer.run(request.version)
            return True

        return await self.context.session.answer(drained(), wait_seconds) is not None

    async def commit(self, request: CommitRequest, wait_seconds: float) -> bool:
        """The batches below a version are trained for good, on disk when this returns. A checkpoint on
        another disk is copied first; False when that takes longer than `wait_seconds`."""
        with self.context.session.faults_end_run():
            folder = await self._checkpoint_here(request, wait_seconds)
            if folder is None:
                return False
            self.queue.commit(request.version, folder)
            with self.context.waits.waiting("commit", "the journal's disk"):
                await self.context.journal.barrier()
            for part in self.parts:
                part.committed()
        return True

    async def close(self) -> None:
        """Ends what is done for a batch that will not be asked for."""
        if self._prepared is not None:
            await end_tasks(self._prepared.work)
        for part in self.parts:
            await part.close()

    async def _answer(self, request: TakeRequest) -> TakeReply:
        """The batch of a step, the end of the run, or the wish for another publication."""
        state, owner = self.context.state, self.fleet.weight_owner
        await self._wait(lambda: state.is_open, "the start of the servers")
        for part in self.parts:
            await part.asked(request)
        # Before servers may generate: no trainer takes a batch of what they would make.
        is_last = request.version >= self.num_steps or any(part.ends_training() for part in self.parts)
        if is_last:
            state.end_rollouts()
        else:
            state.resume_rollouts()
        if not state.is_stopped and self._lacks_publication(request, is_last=is_last):
            for part in self.parts:
                await part.before_publish()
            return TakeReply(None, must_republish=True)
        await self._take_note(request)
        has_waited = [await part.before_batch(request) for part in self.parts]
        if any(has_waited):
            self.context.session.check_is_newest(request)
            if owner.wants_publication:
                return self._ask_to_republish()
        if state.is_over:
            return self._complete(request, TakeReply(None))
        batch, columns = await self._batch(request)
        if batch is not None:
            return await self._give(request, batch, columns)
        if owner.wants_publication and not state.is_over:
            return self._ask_to_republish()
        return self._complete(request, TakeReply(None))

    async def _give(self, request: TakeRequest, batch: Batch, columns: dict[str, Any]) -> TakeReply:
        """The reply with a batch: once the take is on disk and the servers are as the step needs them."""
        for part in self.parts:
            await part.before_reply()
        if self.publishes_all and self.serves_while_training and not await self._has_server():
            return self._ask_to_republish()
        await self._journaled()
        await self._wait(lambda: not self.fleet.members.has_late_joiner(), "a server that joins")
        self.context.session.check_is_newest(request)
        if any(part.withholds() for part in self.parts):
            return self._complete(request, TakeReply(None))
        servers = self.fleet.hand_wire_to_trainer() if self.publishes_all else []
        for part in self.parts:
            part.given(batch, columns)
        own = [url for url in servers if self.keys.is_own(url)]
        self._prepared = None
        return self._complete(request, TakeReply(batch, servers, own_servers=own))

    def _complete(self, request: TakeRequest, reply: TakeReply) -> TakeReply:
        for part in self.parts:
            part.complete(request, reply)
        return reply

    async def _has_server(self) -> bool:
        """Waits until one serves; False when none does and the publication may be damaged."""
        serving, owner = self.fleet.members.serving, self.fleet.weight_owner
        await self._wait(lambda: bool(serving()) or owner.wants_publication, "a serving server")
        return bool(serving())

    async def _wait(self, is_over: Callable[[], bool], blocker: str | Blocker) -> None:
        await self.context.waits.wait_until(is_over, owner=TrainersWait.TAKE, blocker=blocker)

    async def _journaled(self) -> None:
        with self.context.waits.waiting(TrainersWait.TAKE, "the journal's disk"):
            await self.context.journal.barrier()

    # The version that a take names.

    def _ask_to_republish(self) -> TakeReply:
        """The reply for a trainer whose publication may be damaged."""
        self._is_asked_to_republish = True
        return TakeReply(None, must_republish=True)

    def _lacks_publication(self, request: TakeRequest, *, is_last: bool) -> bool:
        """Whether a part waits for weights of the trainer's version that it has not published."""
        return self._is_unpublished(request) and any(
            part.needs_publication(request, is_last=is_last) for part in self.parts
        )

    def _is_unpublished(self, request: TakeRequest) -> bool:
        return not self.publishes_all and not request.publication_folder

    async def _take_note(self, request: TakeRequest) -> None:
        """Takes note of the trainer's version, once per version even when the take is asked again."""
        session, owner = self.context.session, self.fleet.weight_owner
        if self._is_asked_to_republish:
            self._is_asked_to_republish = False
            owner.renew(self._publication_of(request))
        is_known = self.publishes_all or not request.publication_folder
        if self.queue.version == request.version and is_known and not owner.is_with_trainer:
            return
        if self.queue.version is not None and self._has_lost_versions(request):
            await self._drain_lost_versions()
            session.check_is_newest(request)
        if self._is_unpublished(request):
            self.queue.announce(request.version)
            return
        publication = self._publication_of(request)
        for part in self.parts:
            publication = await part.before_announce(publication, request)
        session.check_is_newest(request)
        self.queue.announce(request.version)
        if request.trained_tokens:
            self.context.journal.write(*trained_tokens(request.trained_tokens, request.version - 1))
        if self.publishes_all:
            await self.fleet.announce(publication, request.published)
        else:
            self.fleet.serve_only(publication)
        self.context.state.release_streams()
        for part in self.parts:
            part.announced(publication, request)

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
        self.context.state.hold_streams()
        if await self.generator.interrupt(timeout_seconds=INTERRUPT_SECONDS, has_lost_trainer=True):
            return
        for url in dict.fromkeys(server.url for server in self.generator.running.values()):
            self.fleet.members.fail(self.fleet.members.servers[url], "its streams did not end after an abort")
        await self._wait(lambda: not self.generator.running, "streams of a policy that was lost")

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

    async def _checkpoint_here(self, request: CommitRequest, wait_seconds: float) -> str | None:
        """Its folder on this machine; None when it takes longer to come. Raises QueueError when it does not
        come: the trainer's node may be lost, which ends no run."""
        if not is_url(request.checkpoint_folder):
            return request.checkpoint_folder
        try:
            async with asyncio.timeout(wait_seconds):
                with self.context.waits.waiting("commit", "the copy of a checkpoint from the trainer's node"):
                    return str(await self.copies.checkpoint(request.checkpoint_folder, request.version))
        except TimeoutError:
            return None
        except FetchFailed as error:
            raise QueueError(
                f"The checkpoint of version {request.version} was not copied: {error}"
            ) from error

    # The batch of a version.

    async def _batch(self, request: TakeRequest) -> tuple[Batch | None, dict[str, Any]]:
        """The batch of the step, from the queue, or from the journal as an earlier take got it, and what was
        measured of it. None when the run stops meanwhile."""
        version = request.version
        if self._prepared is None or self._prepared.version != version:
            if version < self.queue.num_steps_taken:
                work = self._read_back(version)
            elif taken := await self._groups(request):
                # The next request for this step gets the same.
                columns = self.columns(taken, version)
                # The step may be trained again, by a start that knows sequences alone.
                self.context.journal.write(batch_columns(version, columns))
                work = self._collect(version, map(sequences_of, taken), columns)
            else:
                return None, {}
            self._prepared = _Prepared(
                version, asyncio.create_task(work, name=f"batch of step {version + 1}")
            )
        found = await asyncio.shield(self._prepared.work)
        self.context.session.check_is_newest(request)
        return found

    async def _groups(self, request: TakeRequest) -> list[Group]:
        """Taken from the queue for the step; none when the run stops meanwhile."""
        version, session, state = request.version, self.context.session, self.context.state
        taken: list[Group] = []

        def try_take() -> bool:
            is_asked = not state.is_over and session.is_newest(request)
            if is_asked and not taken and version == self.queue.num_steps_taken:
                taken.extend(self.queue.take(version) or [])
            return bool(taken) or not is_asked or self.fleet.weight_owner.wants_publication

        await self._wait(try_take, Blocker(BlockerKind.GROUPS, str(version + 1)))
        if not taken:
            session.check_is_newest(request)
        return taken

    async def _read_back(self, version: PolicyVersion) -> tuple[Batch, dict[str, Any]]:
        """The batch as an earlier take was given it."""
        await self._journaled()
        journal = self.context.journal
        return await self._collect(version, load_groups(journal, version), read_columns(journal, version))

    async def _collect(
        self, version: PolicyVersion, groups: Iterable[list[ScoredSequence]], columns: dict[str, Any]
    ) -> tuple[Batch, dict[str, Any]]:
        sequences: list[ScoredSequence] = []
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for group in groups:
            sequences += group
            if loop.time() - begun > SLICE_SECONDS:
                await asyncio.sleep(0)
                begun = loop.time()
        return Batch(version, self.temperature, sequences), columns
