"""Trajectories of several turns as a generator sees them: conversations that stay open between two requests.

A conversation goes back to the server whose cache has it. Trajectories of one turn need none of this.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.records import PolicyVersion, Trajectory
from asyncrl.replay.group import Group
from asyncrl.serving.server import Server


@dataclass
class OpenTurns:
    """The end of a turn leaves its trajectory open, for an observation."""

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
