"""Generating the trajectories of one group: streams from any server, resumes from confirmed prefixes.

What a server confirmed is journaled by the queue at once and never generated again. A stream that breaks
costs its unconfirmed tokens; the rest resumes from its prefix, on this or another server.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from asyncrl.errors import ServerError
from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits, now_seconds
from asyncrl.model.stop import StopSearch, StopStrings, cut
from asyncrl.records import DropReason, Finish, PolicyVersion, SamplingParams, Segment, Trajectory, root_id
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.trajectory_record import TrajectoryRecord
from asyncrl.rollout.response_lengths import ResponseLengths
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.server import Server
from asyncrl.serving.sglang import control
from asyncrl.serving.sglang.messages import Chunk, Prefix, generate_body
from asyncrl.serving.sglang.stream import stream

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
    num_before: int
    """Response tokens in front of its turn."""
    num_held: int
    """Response tokens in its server's cache, as far as they have arrived."""
    num_expected: int
    """Response tokens that it will hold at its end."""
    has_ended: bool = False
    """Its turn has ended: what still comes belongs to no trajectory, which may be in a later turn."""


@dataclass(frozen=True, slots=True)
class TurnBounds:
    """Limits of one turn that its caller asked for."""

    max_tokens: int | None = None
    """Most sampled tokens."""
    stop: StopStrings = StopStrings()
    """Texts that end it, those of the recipe included."""


@dataclass(slots=True, eq=False)
class Connection:
    """The requests of one group that stream from one server."""

    server: Server
    group: Group
    requests: dict[str, _Request]
    """Request id -> what still streams."""
    limit: asyncio.Timeout
    num_prompt_tokens: int
    """Prompt tokens, which its requests share."""
    is_ending: bool = False
    is_shunned: bool = False

    def silence_seconds(self) -> float:
        """Silence of the request that waits longest for a token."""
        return now_seconds() - min((r.moved_seconds for r in self.requests.values()), default=now_seconds())

    def shun(self) -> None:
        """It was too slow here: the group resumes on another server if there is one."""
        self.is_shunned = True

    def expect_end(self) -> None:
        """Its server is asked to end it; its trajectories resume from their prefixes."""
        self.is_ending = True

    def cut(self) -> None:
        """Leaves the connection now; unconfirmed tokens are lost, confirmed ones stay."""
        self.is_ending = True
        if not self.limit.expired():
            self.limit.reschedule(now_seconds())


@dataclass
class Generator:
    """Streams groups until their trajectories end. One instance per run, and one per evaluation of agents."""

    queue: TrajectoryRecord
    fleet: Fleet
    waits: Waits
    sampling: SamplingParams
    context_tokens: int
    max_retries: int
    run_id: str
    """Opens every request id and cache salt, so that runs on shared servers do not meet."""
    state: RunPhase = field(kw_only=True)
    is_cache_recomputed: bool = False
    """Whether a publish discards all keys and values (rollout.interrupt: retract)."""
    ends_with_its_version: bool = False
    """Whether no trajectory may hold tokens of two versions (rollout.interrupt: drain)."""
    plays_turns: bool = False
    """Whether the end of a turn leaves its trajectory open, for an observation."""
    keeps_conversations_cached: bool = False
    """Whether a later turn may read keys and values of the version that began its trajectory
    (rollout.interrupt: continue); its tokens are then marked as continued."""
    max_turn_tokens: int | None = None
    """Most sampled tokens of a turn."""
    may_go_back: bool = False
    """Whether older weights may continue a trajectory: in evaluations, which say what versions answered."""
    tokens_per_round: int | None = None
    """Longest request; what is longer is parked between two requests."""
    is_parked: Callable[[], bool] = lambda: False
    """Whether no group may start to stream now (`Oversampling`)."""
    row_bytes: int = 0
    """Bytes of the routes that servers say of each position (algorithm.routing_replay); 0: not asked."""
    stop: StopStrings = StopStrings()
    """Texts that end a response; servers, which hold no tokenizer, are told to abort it."""
    bounds: dict[str, TurnBounds] = field(default_factory=dict)
    """Trajectory -> what bounds its current turn besides the recipe; trajectories without are not here."""
    played_groups: set[int] = field(default_factory=set)
    """Groups whose agents were started: they have begun, before their first token."""
    grown: Callable[[Trajectory], None] = lambda trajectory: None
    """Told of each trajectory that got confirmed tokens, or whose turn or itself ended."""
    running: dict[str, Server] = field(default_factory=dict)
    """Request id -> server, of what streams now."""
    connections: list[Connection] = field(default_factory=list)
    num_waiting: int = 0
    """Groups that wait for a server."""
    lengths: ResponseLengths = field(default_factory=ResponseLengths)
    _num_requests: int = 0
    _num_on: dict[tuple[Server, int, int], int] = field(default_factory=dict)
    """(server, group, tokens of the prompt) -> connections."""
    _servers: dict[str, Server] = field(default_factory=dict)
    """Trajectory -> the server of its last turn, whose cache has the conversation."""

    async def run(
        self, group: Group, trajectories: Sequence[Trajectory] | None = None
    ) -> AsyncIterator[Trajectory]:
        """Each trajectory of `group`, or of `trajectories` among them, as it ends, or, where `plays_turns`,
        as its turn ends. Stops early, without error, when the run ends.

        Raises GenerationFailed after `max_retries` attempts in a row that brought no token.
        """
        asked = group.trajectories if trajectories is None else trajectories
        num_failures = 0
        server = self._servers.get(asked[0].trajectory_id)
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
            if self.ends_with_its_version and _has_outlived_version(group, pending, server):
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
        return group.num_tokens() > 0 or group.group_id in self.played_groups

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
        connection.expect_end()
        for request_id in list(connection.requests):
            await self._try(control.abort(self.fleet.session, connection.server.url, request_id))

    async def _wait_for_server(
        self, pending: list[Trajectory], group: Group, *, before: Server | None, shunned: Server | None
    ) -> Server | None:
        """A server with room, once the trainer has caught up with what was journaled.

        None when the run ends or the group was dropped meanwhile.
        """
        num_requests = len(pending)
        newest = 0 if self.may_go_back else _newest_version(group, pending)
        tokens = self._expected_tokens(group, pending)

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
        assert server.version is not None
        requests = {
            self._request_id(t): _Request(
                t,
                Confirmation(
                    self._salt_version(server, t),
                    self.is_cache_recomputed,
                    is_truncated=self.sampling.is_truncated() and not t.is_greedy,
                    row_bytes=self.row_bytes,
                    num_context_rows=_num_unrouted(t),
                ),
                self._stop(t).search(t.turn_tokens()),
                now_seconds(),
                t.num_response_tokens() - t.num_turn_tokens(),
                t.num_response_tokens(),
                self._expected_length(t),
            )
            for t in pending
        }
        return Connection(
            server, group, requests, asyncio.timeout(None), max(len(t.prompt_tokens) for t in pending)
        )

    async def _stream(self, connection: Connection, pending: list[Trajectory]) -> AsyncIterator[Trajectory]:
        server, group, requests = connection.server, connection.group, connection.requests
        prefixes = [self._prefix(request_id, request.trajectory) for request_id, request in requests.items()]
        salt = self.fleet.router.salt(server, self._salt_version(server, pending[0]))
        body = generate_body(
            prefixes,
            self.sampling,
            salt=f"{self.run_id}-{salt}",
            has_kept_sets=self.sampling.is_truncated(),
            has_routes=bool(self.row_bytes),
        )
        self.queue.stream_from(server.url, pending)
        if self.plays_turns:
            self._servers.update((trajectory.trajectory_id, server) for trajectory in pending)
        self._acquire(connection)
        try:
            async with server.heartbeat.streaming(connection.limit):
                async for chunk in stream(self.fleet.session, server.url, body):
                    request = requests.get(chunk.request_id)
                    if request is None:
                        raise ServerError(
                            f"{server.url} streamed request {chunk.request_id}, which was not asked for"
                        )
                    self._count(server, request, chunk)
                    has_stopped = request.search.feed(chunk.tokens)
                    finish = self._receive(group, request, chunk)
                    if chunk.end is not None:
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
            self._expect_prompt(connection, -1)
            for request_id, request in requests.items():
                self.queue.discard(len(request.confirmation.pending_tokens), DropReason.UNCONFIRMED)
                self._release(server, request_id, request)

    def _acquire(self, connection: Connection) -> None:
        server, requests = connection.server, connection.requests
        self.fleet.router.acquire(server, len(requests))
        self._expect_prompt(connection, 1)
        for request in requests.values():
            server.expect(request.num_expected, held=request.num_held)
        self.running.update(dict.fromkeys(requests, server))
        self.connections.append(connection)

    def _expect_prompt(self, connection: Connection, change: int) -> None:
        """The requests of a group share their prompt on each server, however many connections they have."""
        prompt = connection.num_prompt_tokens
        key = (connection.server, connection.group.group_id, prompt)
        before = self._num_on.get(key, 0)
        self._num_on[key] = before + change
        if not self._num_on[key]:
            del self._num_on[key]
        if 0 in (before, before + change):
            connection.server.expect(change * prompt, held=change * prompt)

    def _count(self, server: Server, request: _Request, chunk: Chunk) -> None:
        """Tokens as they come, and what that says of how many will come."""
        if chunk.tokens:
            server.count_tokens(len(chunk.tokens))
        request.num_held += len(chunk.tokens)
        before = request.num_expected
        if request.num_held > before:
            # Over a round's end by nothing: it ends there.
            limit = max(request.num_held, self.limit_tokens(request.trajectory))
            request.num_expected = self._expected_end(request.num_before, request.num_held, limit)
        server.expect(request.num_expected - before, held=len(chunk.tokens))
        if chunk.end is not None:
            server.num_retractions += chunk.num_retractions

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
            segments, finish = cut(segments, num_kept), Finish.STOP
        elif finish is Finish.LENGTH and num_new < self._num_left(request.trajectory):
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
        self.queue.append(group, trajectory, segments, None if self.plays_turns else finish)
        if self.plays_turns:
            trajectory.turn_finish = finish
        if finish is not None:
            self.lengths.add(trajectory.num_turn_tokens())
        self.grown(trajectory)

    def _stop(self, trajectory: Trajectory) -> StopStrings:
        bounds = self.bounds.get(trajectory.trajectory_id)
        return self.stop if bounds is None else bounds.stop

    def _salt_version(self, server: Server, trajectory: Trajectory) -> PolicyVersion:
        """The version whose keys and values a request may find in the cache.

        A salt per version would make every open conversation prefill again at each publish.
        """
        assert server.version is not None
        sampled = trajectory.sampled() if self.keeps_conversations_cached else []
        return sampled[0].version if sampled else server.version

    def forget(self, group: Group) -> None:
        """The group's conversations are over."""
        self.played_groups.discard(group.group_id)
        for trajectory in group.trajectories:
            for line in trajectory.lines():
                self._servers.pop(line.trajectory_id, None)
                self.bounds.pop(line.trajectory_id, None)

    def _release(self, server: Server, request_id: str, request: _Request) -> None:
        if self.running.pop(request_id, None) is not None:
            server.expect(-request.num_expected, held=-request.num_held)
            self.fleet.router.release(server)

    def _request_id(self, trajectory: Trajectory) -> str:
        self._num_requests += 1
        return f"{self.run_id}-{trajectory.trajectory_id}-{self._num_requests:010d}"

    def _prefix(self, request_id: str, trajectory: Trajectory) -> Prefix:
        tokens = [*trajectory.prompt_tokens, *trajectory.response_tokens()]
        num_left = self._num_left(trajectory)
        limit = min(num_left, self.tokens_per_round or num_left)
        return Prefix(request_id, tokens, limit, trajectory.is_greedy, trajectory.num_routed())

    def expected_tokens(self, connection: Connection) -> int:
        """Cache tokens that its trajectories will hold; they share their prompt."""
        trajectories = [request.trajectory for request in connection.requests.values()]
        return self._expected_tokens(connection.group, trajectories)

    def _expected_tokens(self, group: Group, pending: Sequence[Trajectory]) -> int:
        prompt = max((len(t.prompt_tokens) for t in pending), default=len(group.task.prompt_tokens))
        return prompt + sum(map(self._expected_length, pending))

    def expects_of_new_group(self, num_trajectories: int) -> int:
        """Cache tokens that a group without a task yet will hold."""
        limit = min(self.sampling.max_new_tokens, self.context_tokens)
        limit = limit if self.max_turn_tokens is None else min(limit, self.max_turn_tokens)
        return num_trajectories * self.lengths.expected(0, limit_tokens=self._in_round(0, limit))

    def _expected_length(self, trajectory: Trajectory) -> int:
        """Response tokens at the end of its next request."""
        num_tokens, limit = trajectory.num_response_tokens(), self.limit_tokens(trajectory)
        num_before = num_tokens - trajectory.num_turn_tokens()
        return self._expected_end(num_before, num_tokens, self._in_round(num_tokens, limit))

    def _expected_end(self, num_before: int, num_tokens: int, limit: int) -> int:
        """Response tokens at the end of a turn, of which there are `num_tokens`, `num_before` in front of it:
        observed ones are known, and the turn ends as turns ended lately."""
        return num_before + self.lengths.expected(num_tokens - num_before, limit_tokens=limit - num_before)

    def _in_round(self, num_tokens: int, limit: int) -> int:
        return limit if self.tokens_per_round is None else min(limit, num_tokens + self.tokens_per_round)

    def limit_tokens(self, trajectory: Trajectory) -> int:
        """Tokens after the prompt at which a trajectory, or its turn, is cut off."""
        room = self.context_tokens - len(trajectory.prompt_tokens)
        num_tokens = trajectory.num_response_tokens()
        num_observed = num_tokens - trajectory.num_sampled_tokens()
        limit = min(self.sampling.max_new_tokens + num_observed, room)
        bounds = self.bounds.get(trajectory.trajectory_id, TurnBounds())
        turn_limits = [most for most in (self.max_turn_tokens, bounds.max_tokens) if most is not None]
        if not turn_limits:
            return limit
        return min(limit, num_tokens - trajectory.num_turn_tokens() + min(turn_limits))

    def limit_branches(self, trajectory: Trajectory) -> None:
        """Bounds the turn of the newest branch by what the turns before left of rollout.max_new_tokens, which
        counts all branches of a rendered history."""
        line = trajectory.newest_line()
        before = trajectory.num_sampled_in_all() - line.num_turn_tokens()
        left = max(0, self.sampling.max_new_tokens - before)
        self.bounds[line.trajectory_id] = TurnBounds(left, self.stop)

    def follow(self, branch: Trajectory, line: Trajectory) -> None:
        """The branch prefers the server of `line`, whose cache has most of its context."""
        server = self._servers.get(line.trajectory_id)
        if server is not None:
            self._servers[branch.trajectory_id] = server

    def limit_sampled_in_all(self, trajectory: Trajectory) -> int:
        """Sampled tokens of all branches at which a trajectory without an agent is cut off."""
        line = trajectory.newest_line()
        before = trajectory.num_sampled_in_all() - line.num_sampled_tokens()
        num_observed = line.num_response_tokens() - line.num_sampled_tokens()
        room = self.context_tokens - len(line.prompt_tokens) - num_observed
        return min(self.sampling.max_new_tokens, before + max(0, room))

    def limit_sampled_tokens(self, trajectory: Trajectory) -> int:
        """Sampled tokens at which a trajectory is cut off."""
        num_observed = trajectory.num_response_tokens() - trajectory.num_sampled_tokens()
        room = self.context_tokens - len(trajectory.prompt_tokens) - num_observed
        return min(self.sampling.max_new_tokens, room)

    def _num_left(self, trajectory: Trajectory) -> int:
        return self.limit_tokens(trajectory) - trajectory.num_response_tokens()

    def _end_finished(self, group: Group, asked: Sequence[Trajectory]) -> list[Trajectory]:
        """Ends trajectories that have their last token but no finish: a stream may break between the two, and
        SGLang calls a request aborted whose last token came with the abort."""
        ended = []
        for trajectory in _pending(asked):
            finish = self._finish_already_reached(trajectory)
            if finish is not None:
                self._append(group, trajectory, [], finish)
                ended.append(trajectory)
        return ended

    def _finish_already_reached(self, trajectory: Trajectory) -> Finish | None:
        """The end that a confirmed prefix implies."""
        tokens = trajectory.turn_tokens()
        if tokens and tokens[-1] in self.sampling.stop_token_ids:
            return Finish.STOP
        if self._stop(trajectory).search(tokens).end is not None:
            return Finish.STOP
        return Finish.LENGTH if self._num_left(trajectory) <= 0 else None


def _whole(group: Group, lines: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories of `group` that the lines are, or are branches of."""
    names = {root_id(line.trajectory_id) for line in lines}
    return [trajectory for trajectory in group.trajectories if trajectory.trajectory_id in names]


def _num_unrouted(line: Trajectory) -> int:
    """Positions without routes in front of the one that samples the next token."""
    return len(line.prompt_tokens) + line.num_response_tokens() - 1 - line.num_routed()


def _has_outlived_version(group: Group, pending: Sequence[Trajectory], server: Server) -> bool:
    """Whether `server` would continue a trajectory that another version began, in whichever branch."""
    lines = [line for trajectory in _whole(group, pending) for line in trajectory.lines()]
    return any(segment.version != server.version for line in lines for segment in line.sampled())


def _newest_version(group: Group, pending: Sequence[Trajectory]) -> PolicyVersion:
    """The newest version that made a token in front of what is pending: of the line itself and, where turns
    follow each other through branches, of all before it. An agent's branches may run side by side."""
    before = [line for whole in _whole(group, pending) if not whole.calls for line in whole.lines()]
    return max((line.newest_version() or 0 for line in [*before, *pending]), default=0)


def _pending(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that a server continues."""
    return [t for t in trajectories if t.finish is None and t.turn_finish is None]
