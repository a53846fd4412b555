"""Rules of a run for its requests: which versions may follow each other in a trajectory (rollout.interrupt),
and what servers say of each token beside its log-prob.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.records import PolicyVersion, Trajectory, root_id
from asyncrl.replay.group import Group
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.server import Server
from asyncrl.serving.sglang.messages import ServedColumn


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
