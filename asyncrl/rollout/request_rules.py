"""Rules of a run for its requests: where a trajectory, its turn and its next request end; which versions may
follow each other in a trajectory (rollout.interrupt); what servers say of each token beside its log-prob; and
the conversations that stay open between two requests. Rounds (rollout.tokens_per_round) end a request and no
turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.model.token_text import StopSearch, StopStrings
from asyncrl.records import Finish, PolicyVersion, SamplingParams, Trajectory, root_id
from asyncrl.replay.group import Group
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.server import Server
from asyncrl.serving.sglang.messages import ServedColumn


@dataclass(frozen=True, slots=True)
class TurnBounds:
    """Limits of one turn that its caller asked for."""

    max_tokens: int | None = None
    """Most sampled tokens."""
    stop: StopStrings = StopStrings()
    """Texts that end it, those of the recipe included."""


@dataclass
class Limits:
    """Those of a run, or of an evaluation of agents."""

    sampling: SamplingParams
    context_tokens: int
    max_turn_tokens: int | None = None
    """Most sampled tokens of a turn."""
    tokens_per_round: int | None = None
    """Longest request; what is longer is parked between two requests."""
    stop: StopStrings = StopStrings()
    """Texts that end a response; servers, which hold no tokenizer, are told to abort it."""
    bounds: dict[str, TurnBounds] = field(default_factory=dict)
    """Trajectory -> what bounds its current turn besides the recipe; trajectories without are not here."""

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

    def limit_of_request(self, num_tokens: int, limit: int) -> int:
        """Tokens after the prompt at which the next request of a trajectory with `num_tokens` ends."""
        return limit if self.tokens_per_round is None else min(limit, num_tokens + self.tokens_per_round)

    def limit_of_new(self) -> int:
        """The same for a trajectory without a task yet."""
        limit = min(self.sampling.max_new_tokens, self.context_tokens)
        limit = limit if self.max_turn_tokens is None else min(limit, self.max_turn_tokens)
        return self.limit_of_request(0, limit)

    def limit_sampled_tokens(self, trajectory: Trajectory) -> int:
        """Sampled tokens at which a trajectory is cut off."""
        num_observed = trajectory.num_response_tokens() - trajectory.num_sampled_tokens()
        room = self.context_tokens - len(trajectory.prompt_tokens) - num_observed
        return min(self.sampling.max_new_tokens, room)

    def limit_sampled_in_all(self, trajectory: Trajectory) -> int:
        """Sampled tokens of all branches at which a trajectory without an agent is cut off."""
        line = trajectory.newest_line()
        before = trajectory.num_sampled_in_all() - line.num_sampled_tokens()
        num_observed = line.num_response_tokens() - line.num_sampled_tokens()
        room = self.context_tokens - len(line.prompt_tokens) - num_observed
        return min(self.sampling.max_new_tokens, before + max(0, room))

    def limit_branches(self, trajectory: Trajectory, most_tokens: int | None = None) -> None:
        """Bounds the turn of the newest branch by what the turns before left of rollout.max_new_tokens, which
        counts all branches of a trajectory without an agent, and by `most_tokens`."""
        line = trajectory.newest_line()
        before = trajectory.num_sampled_in_all() - line.num_turn_tokens()
        left = max(0, self.sampling.max_new_tokens - before)
        left = left if most_tokens is None else min(left, most_tokens)
        self.bounds[line.trajectory_id] = TurnBounds(left, self.stop)

    def forget(self, group: Group) -> None:
        """The group's turns are over."""
        for trajectory in group.trajectories:
            for line in trajectory.lines():
                self.bounds.pop(line.trajectory_id, None)

    def num_left(self, trajectory: Trajectory) -> int:
        """Tokens until the trajectory, or its turn, is cut off."""
        return self.limit_tokens(trajectory) - trajectory.num_response_tokens()

    def num_asked(self, trajectory: Trajectory) -> int:
        """Most tokens of the next request."""
        num_left = self.num_left(trajectory)
        return min(num_left, self.tokens_per_round or num_left)

    def search(self, trajectory: Trajectory, so_far: Sequence[int]) -> StopSearch:
        """A search for what ends the turn whose first tokens are `so_far`."""
        bounds = self.bounds.get(trajectory.trajectory_id)
        return (self.stop if bounds is None else bounds.stop).search(so_far)

    def finish_reached(self, trajectory: Trajectory) -> Finish | None:
        """The end that a confirmed prefix implies."""
        tokens = trajectory.turn_tokens()
        if tokens and tokens[-1] in self.sampling.stop_token_ids:
            return Finish.STOP
        if self.search(trajectory, tokens).end is not None:
            return Finish.STOP
        return Finish.LENGTH if self.num_left(trajectory) <= 0 else None


@dataclass(frozen=True, slots=True)
class RequestRules:
    is_cache_recomputed: bool = False
    """Whether a publish discards all keys and values (rollout.interrupt: retract)."""
    ends_with_its_version: bool = False
    """Whether no trajectory may hold tokens of two versions (rollout.interrupt: drain)."""
    may_go_back: bool = False
    """Whether older weights may continue a trajectory: in evaluations, which say what versions answered."""
    waits_for_room: bool = True
    """Whether requests wait here until a server has room, instead of there."""
    columns: tuple[ServedColumn, ...] = ()
    """Columns that servers send with tokens, for the trainer."""

    def confirmation(self, line: Trajectory, salt_version: PolicyVersion) -> Confirmation:
        """The confirmation of the tokens of the next request."""
        # Positions that no request has told of, in front of the one that samples the next token.
        num_context = len(line.prompt_tokens) + line.num_response_tokens() - 1 - line.num_computed()
        columns = tuple(one for one in self.columns if one.is_of_greedy or not line.is_greedy)
        return Confirmation(salt_version, self.is_cache_recomputed, columns, num_context)

    def at_least(self, group: Group, pending: Sequence[Trajectory]) -> PolicyVersion:
        """The oldest version that may continue `pending`: the newest that made a token in front of them, in
        the line itself and, where turns follow each other through branches, in all before it. An agent's
        branches may run side by side."""
        if self.may_go_back:
            return 0
        before = [line for whole in _whole(group, pending) if not whole.calls for line in whole.lines()]
        return max((line.newest_version() or 0 for line in [*before, *pending]), default=0)

    def is_outlived(self, group: Group, pending: Sequence[Trajectory], server: Server) -> bool:
        """Whether `server` would add a second version to a trajectory that may have one, in any branch."""
        if not self.ends_with_its_version:
            return False
        lines = [line for trajectory in _whole(group, pending) for line in trajectory.lines()]
        return any(segment.version != server.version for line in lines for segment in line.sampled())


UNTRAINED = RequestRules(may_go_back=True, waits_for_room=False)
"""Rules of evaluations and chats, whose tokens are not trained."""
MAX_RETRIES = 2
"""Requests in a row that may bring no token before one of these fails."""


def _whole(group: Group, lines: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories of `group` that the lines are, or are branches of."""
    names = {root_id(line.trajectory_id) for line in lines}
    return [trajectory for trajectory in group.trajectories if trajectory.trajectory_id in names]


@dataclass
class OpenTurns:
    """Conversations that stay open between two requests: the end of a turn leaves its trajectory open, for an
    observation. A conversation goes back to the server whose cache has it."""

    keeps_cached: bool = False
    """Whether a later turn may read keys and values of the version that began its trajectory
    (rollout.interrupt: continue); its tokens are then marked as continued."""
    played_groups: set[int] = field(default_factory=set)
    """Groups whose agents were started: they have begun, before their first token."""
    servers: dict[str, Server] = field(default_factory=dict)
    """Trajectory -> the server of its last turn, whose cache has the conversation."""

    def stream_from(self, server: Server, lines: Sequence[Trajectory]) -> None:
        self.servers.update((line.trajectory_id, server) for line in lines)

    def salt_version(self, server: Server, line: Trajectory) -> PolicyVersion:
        """The version whose keys and values a request may find in the cache.

        A salt per version would make every open conversation prefill again at each publish.
        """
        assert server.version is not None
        sampled = line.sampled() if self.keeps_cached else []
        return sampled[0].version if sampled else server.version

    def follow(self, branch: Trajectory, line: Trajectory) -> None:
        """The branch prefers the server of `line`, whose cache has most of its context."""
        server = self.servers.get(line.trajectory_id)
        if server is not None:
            self.servers[branch.trajectory_id] = server

    def forget(self, group: Group) -> None:
        """The group's conversations are over."""
        self.played_groups.discard(group.group_id)
        for trajectory in group.trajectories:
            for line in trajectory.lines():
                self.servers.pop(line.trajectory_id, None)
