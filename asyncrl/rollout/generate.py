"""Generating the trajectories of one group: their next requests, the chunks of these, their ends.

Streams come from any server. What a server confirmed is journaled by the queue at once and never generated
again. A stream that breaks costs its unconfirmed tokens; the rest resumes from its prefix, on this or another
server. What else shapes a request stands beside it: request_rules.py, expected_load.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from asyncrl.errors import ServerError
from asyncrl.loops import RunPhase, Waits, now_seconds
from asyncrl.model.token_text import StopSearch
from asyncrl.records import DropReason, Finish, PolicyVersion, Segment, Trajectory
from asyncrl.replay.branches import TrajectoryRecord
from asyncrl.replay.group import Group, GroupState
from asyncrl.rollout.expected_load import ExpectedLoad, Held, num_prompt_tokens
from asyncrl.rollout.request_rules import Limits, OpenTurns, RequestRules
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.server import Server
from asyncrl.serving.sglang import control
from asyncrl.serving.sglang.messages import Chunk, Prefix, generate_body, stream

log = logging.getLogger(__name__)


class GenerationFailed(ServerError):
    """Every retry of a group's generation was spent without a single new token."""


@dataclass(slots=True)
class _Request:
    trajectory: Trajectory
    confirmation: Confirmation
    search: StopSearch
    """Through the whole turn, the part that earlier requests brought included."""
    moved_seconds: float
    """When it last got a token, as `now_seconds`."""
    held: Held
    has_ended: bool = False
    """Its turn has ended: what still comes belongs to no trajectory, which may be in a later turn."""


@dataclass(slots=True, eq=False)
class Connection:
    """The requests of one group that stream from one server."""

    server: Server
    group: Group
    requests: dict[str, _Request]
    """Request id -> what still streams."""
    limit: asyncio.Timeout
    num_prompt_tokens: int
    """Tokens of its prompts; requests of one task share theirs."""
    is_ending: bool = False
    """Its server was asked to end it; its trajectories resume from their prefixes."""
    is_shunned: bool = False
    """It was too slow here: the group resumes on another server if there is one."""

    def silence_seconds(self) -> float:
        """Silence of the request that waits longest for a token."""
        return now_seconds() - min((r.moved_seconds for r in self.requests.values()), default=now_seconds())

    def cut(self) -> None:
        """Leaves the connection now; unconfirmed tokens are lost, confirmed ones stay."""
        self.is_ending = True
        if not self.limit.expired():
            self.limit.reschedule(now_seconds())


@dataclass
class Generator:
    """Streams groups until their trajectories end. One instance per run, per evaluation and per chat."""

    queue: TrajectoryRecord
    fleet: Fleet
    waits: Waits
    limits: Limits
    max_retries: int
    run_id: str
    """Opens every request id and cache salt, so that runs on shared servers do not meet."""
    state: RunPhase = field(kw_only=True)
    rules: RequestRules = RequestRules()
    turns: OpenTurns | None = None
    """None where the end of a turn is that of its trajectory."""
    is_parked: Callable[[], bool] = lambda: False
    """Whether no group may start to stream now (`Oversampling`)."""
    grown: Callable[[Trajectory], None] = lambda trajectory: None
    """Called with each trajectory that got confirmed tokens, or whose turn or itself ended."""
    running: dict[str, Server] = field(default_factory=dict)
    """Request id -> server, of what streams now."""
    connections: list[Connection] = field(default_factory=list)
    num_waiting: int = 0
    """Groups that wait for a server."""
    load: ExpectedLoad = field(init=False)
    _num_requests: int = 0

    def __post_init__(self) -> None:
        self.load = ExpectedLoad(self.limits)

    async def run(
        self, group: Group, trajectories: Sequence[Trajectory] | None = None
    ) -> AsyncIterator[Trajectory]:
        """Each trajectory of `group`, or of `trajectories` among them, as it ends, or, with `turns`, as its
        turn ends. Stops early, without error, when the run ends.

        Raises GenerationFailed after `max_retries` attempts in a row that brought no token.
        """
        asked = group.trajectories if trajectories is None else trajectories
        num_failures = 0
        server = None if self.turns is None else self.turns.servers.get(asked[0].trajectory_id)
        shunned: Server | None = None
        while group.state is GroupState.OPEN:
            for trajectory in self._end_finished(group, asked):
                yield trajectory
            pending = _pending(asked)
            if not pending:
                return
            server = await self._wait_for_server(pending, group, before=server, shunned=shunned)
            if server is None:
                return
            if self.rules.is_outlived(group, pending, server):
                self.queue.drop(group, DropReason.OUTLIVED)
                return
            tokens_before = group.num_tokens()
            connection = self._connect(server, group, pending)
            try:
                with self.waits.waiting(group.title, f"tokens from {server.url}"):
                    async for trajectory in self._stream(connection, pending):
                        yield trajectory
                shunned = server if connection.is_shunned else None
            except ServerError as error:
                await self.fleet.members.suspect(server, error)
                # The fleet has warned of a server that leaves, once for all its groups.
                is_told = not server.is_serving()
                log.log(logging.INFO if is_told else logging.WARNING, "%s: %s", group.title, error)
                num_failures = 0 if group.num_tokens() > tokens_before else num_failures + 1
                if num_failures > self.max_retries:
                    raise GenerationFailed(f"{group.title}: {error}") from error

    async def interrupt(self, *, timeout_seconds: float, has_lost_trainer: bool = False) -> bool:
        """Aborts everything that streams; False when some stream has not ended within `timeout_seconds`.

        A trainer that died while it published leaves servers paused, and aborts take effect when they resume.
        """
        streaming = dict(self.running)
        # Side by side: one by one, hundreds of streams would take seconds.
        aborts = (
            self._try(control.abort(self.fleet.session, server.url, request_id))
            for request_id, server in streaming.items()
        )
        await asyncio.gather(*aborts)
        if has_lost_trainer:
            for url in dict.fromkeys(server.url for server in streaming.values()):
                await self._try(control.continue_generation(self.fleet.session, url))
        return await self.waits.wait_until(
            lambda: not self.running,
            owner="interrupt",
            blocker=f"{len(self.running)} streams",
            timeout_seconds=timeout_seconds,
        )

    def has_begun(self, group: Group) -> bool:
        """Whether a drain waits for the group, and lets it stream."""
        is_played = self.turns is not None and group.group_id in self.turns.played_groups
        return is_played or group.num_tokens() > 0

    def may_stream(self) -> bool:
        """Whether groups may start to stream, as far as it is not a matter of servers."""
        return not (self.state.is_held or self.queue.is_catching_up() or self.is_parked())

    async def _try(self, call: Coroutine[None, None, None]) -> None:
        """The stream of a server that does not answer breaks: it is dealt with there."""
        try:
            await call
        except ServerError as error:
            log.warning("%s", error)

    async def end(self, connection: Connection) -> None:
        """Asks the server to end the requests of `connection`; each then carries what it has."""
        connection.is_ending = True
        for request_id in list(connection.requests):
            await self._try(control.abort(self.fleet.session, connection.server.url, request_id))

    async def _wait_for_server(
        self, pending: list[Trajectory], group: Group, *, before: Server | None, shunned: Server | None
    ) -> Server | None:
        """A server with room, once the trainer has caught up with what was journaled.

        None when the run ends or the group was dropped meanwhile.
        """
        has_room = self.rules.waits_for_room
        num_requests, tokens = (len(pending), self.load.tokens(group, pending)) if has_room else (0, 0)
        newest = self.rules.at_least(group, pending)

        def found() -> Server | None:
            return self.fleet.router.pick(
                num_requests,
                tokens=tokens,
                before=before,
                at_least=newest,
                shunned=shunned,
                is_new=not self.has_begun(group),
            )

        def is_over() -> bool:
            return self.state.is_ending or group.state is not GroupState.OPEN

        self.num_waiting += 1
        try:
            await self.waits.wait_until(
                lambda: is_over() or (self.may_stream() and found() is not None),
                owner=group.title,
                blocker=f"a serving server of version {newest} or later with room for {num_requests}",
            )
        finally:
            self.num_waiting -= 1
        return None if is_over() else found()

    def _connect(self, server: Server, group: Group, pending: list[Trajectory]) -> Connection:
        requests = {
            self._request_id(t): _Request(
                t,
                self.rules.confirmation(t, self._salt_version(server, t)),
                self.limits.search(t, t.turn_tokens()),
                now_seconds(),
                self.load.held_by(t),
            )
            for t in pending
        }
        return Connection(server, group, requests, asyncio.timeout(None), num_prompt_tokens(pending))

    async def _stream(self, connection: Connection, pending: list[Trajectory]) -> AsyncIterator[Trajectory]:
        server, group, requests = connection.server, connection.group, connection.requests
        prefixes = [self._prefix(request_id, request.trajectory) for request_id, request in requests.items()]
        salt = self.fleet.router.salt(server, self._salt_version(server, pending[0]))
        body = generate_body(
            prefixes,
            self.limits.sampling,
            salt=f"{self.run_id}-{salt}",
            columns=self.rules.columns,
        )
        self.queue.stream_from(server.url, pending)
        if self.turns is not None:
            self.turns.stream_from(server, pending)
        self.fleet.router.acquire(server, len(requests))
        self.load.begin(server, group, connection.num_prompt_tokens, [r.held for r in requests.values()])
        self.running.update(dict.fromkeys(requests, server))
        self.connections.append(connection)
        try:
            async with server.heartbeat.streaming(connection.limit):
                async for chunk in stream(self.fleet.session, server.url, body, self.rules.columns):
                    request = requests.get(chunk.request_id)
                    if request is None:
                        raise ServerError(
                            f"{server.url} streamed request {chunk.request_id}, which was not asked for"
                        )
                    if chunk.tokens:
                        server.count_tokens(len(chunk.tokens))
                    self.load.grow(server, request.trajectory, request.held, len(chunk.tokens))
                    has_stopped = request.search.feed(chunk.tokens)
                    finish = self._receive(group, request, chunk)
                    if chunk.end is not None:
                        server.num_retractions += chunk.num_retractions
                        del requests[chunk.request_id]
                        self._release(server, chunk.request_id, request)
                    elif has_stopped:
                        # What the server does not confirm in each chunk, it confirms at the end.
                        await self._try(control.abort(self.fleet.session, server.url, chunk.request_id))
                    if finish is not None:
                        yield request.trajectory
        except TimeoutError:
            assert connection.is_ending
            log.info("%s leaves %s and resumes from its prefixes", group.title, server.url)
        finally:
            self.connections.remove(connection)
            self.load.end_prompt(server, group, connection.num_prompt_tokens)
            for request_id, request in requests.items():
                self.queue.discard(len(request.confirmation.pending_tokens), DropReason.UNCONFIRMED)
                self._release(server, request_id, request)

    def _receive(self, group: Group, request: _Request, chunk: Chunk) -> Finish | None:
        if chunk.tokens:
            request.moved_seconds = now_seconds()
        segments: list[Segment] = request.confirmation.feed(chunk)
        finish = chunk.end.finish() if chunk.end is not None else None
        if chunk.end is not None and request.confirmation.pending_tokens:
            raise ServerError(f"request {chunk.request_id} ended without version spans")
        num_new = sum(len(segment.tokens) for segment in segments)
        if request.has_ended:
            self.queue.discard(num_new, DropReason.AFTER_STOP)
            return None
        if segments and request.search.end is not None and group.state is GroupState.OPEN:
            num_kept = request.search.end - request.trajectory.num_turn_tokens()
            self.queue.discard(num_new - num_kept, DropReason.AFTER_STOP)
            segments = request.confirmation.cut(segments, num_kept)
            finish = Finish.STOP
        elif finish is Finish.LENGTH and num_new < self.limits.num_left(request.trajectory):
            # The round is over, not the trajectory.
            finish = None
        if group.state is not GroupState.OPEN:
            # It was dropped while it streamed: its tokens belong to no group.
            self.queue.discard(num_new, DropReason.UNCONFIRMED)
            return None
        if segments or finish is not None:
            self._append(group, request.trajectory, segments, finish)
        request.has_ended = finish is not None
        return finish

    def _append(
        self, group: Group, trajectory: Trajectory, segments: list[Segment], finish: Finish | None
    ) -> None:
        self.queue.append(group, trajectory, segments, finish if self.turns is None else None)
        if self.turns is not None:
            trajectory.turn_finish = finish
        if finish is not None:
            self.load.lengths.add(trajectory.num_turn_tokens())
        self.grown(trajectory)

    def _salt_version(self, server: Server, trajectory: Trajectory) -> PolicyVersion:
        """The version whose keys and values a request may find in the cache."""
        assert server.version is not None
        return server.version if self.turns is None else self.turns.salt_version(server, trajectory)

    def forget(self, group: Group) -> None:
        """The group's conversations are over."""
        self.limits.forget(group)
        if self.turns is not None:
            self.turns.forget(group)

    def _release(self, server: Server, request_id: str, request: _Request) -> None:
        if self.running.pop(request_id, None) is not None:
            self.load.end(server, request.held)
            self.fleet.router.release(server)

    def _request_id(self, trajectory: Trajectory) -> str:
        self._num_requests += 1
        return f"{self.run_id}-{trajectory.trajectory_id}-{self._num_requests:010d}"

    def _prefix(self, request_id: str, trajectory: Trajectory) -> Prefix:
        tokens = [*trajectory.prompt_tokens, *trajectory.response_tokens()]
        num_asked = self.limits.num_asked(trajectory)
        return Prefix(request_id, tokens, num_asked, trajectory.is_greedy, trajectory.num_computed())

    def _end_finished(self, group: Group, asked: Sequence[Trajectory]) -> list[Trajectory]:
        """Ends trajectories that have their last token but no finish: a stream may break between the two, and
        SGLang calls a request aborted whose last token came with the abort."""
        ended = []
        for trajectory in _pending(asked):
            finish = self.limits.finish_reached(trajectory)
            if finish is not None:
                self._append(group, trajectory, [], finish)
                ended.append(trajectory)
        return ended


def _pending(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that a server continues."""
    return [t for t in trajectories if t.finish is None and t.turn_finish is None]
