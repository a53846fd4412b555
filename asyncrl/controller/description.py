"""A run at one moment, in words, for the post-mortem."""

from asyncrl.loops.waits import Waits
from asyncrl.replay.queue import ReplayQueue
from asyncrl.serving.fleet import Fleet


def describe_run(queue: ReplayQueue, fleet: Fleet, waits: Waits) -> dict[str, str]:
    """Title -> lines: what waits for what, the servers, the groups, the tokens."""
    groups = [
        f"  {group.group_id}: {group.state.value}, admitted at version {group.admitted_version}, "
        f"{sum(t.finish is not None for t in group.trajectories)} of {len(group.trajectories)} ended, "
        f"{len(group.scores)} verdicts, {group.num_tokens()} tokens"
        for group in queue.live.values()
    ]
    servers = [
        f"  {server.url}: {server.state.value}, version {server.version}, {server.num_running} requests, "
        f"{server.num_restarts} restarts{f', {server.reason}' if server.reason else ''}"
        for server in fleet.members.servers.values()
    ]
    tokens = [f"  {name}: {count}" for name, count in queue.conservation().items()]
    return {
        "What waited for what": waits.describe_waits(),
        "Servers": "\n".join(servers),
        f"Groups in the queue (trainer at version {queue.version})": "\n".join(groups),
        "Tokens": "\n".join(tokens),
    }
