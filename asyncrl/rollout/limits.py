"""Where a trajectory, its turn and its next request end: by the recipe, by what a caller asks of one turn, by
a stop string or token. Rounds (rollout.tokens_per_round) end a request and no turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.model.stop import StopSearch, StopStrings
from asyncrl.records import Finish, SamplingParams, Trajectory
from asyncrl.replay.group import Group


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
