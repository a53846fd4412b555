"""Utilization of a fleet: sums over its servers."""

from asyncrl.serving.membership import Membership


class Utilization:
    """Sums over all servers, also those that left: they never fall."""

    def __init__(self, members: Membership) -> None:
        self._members = members

    def busy_seconds(self) -> float:
        """Seconds, summed over servers, in which at least one request was running."""
        return sum(server.busy_so_far() for server in self._members.all())

    def stream_seconds(self) -> tuple[float, float]:
        """Sums over servers: requests running times seconds, and their squares times seconds."""
        servers = self._members.all()
        for server in servers:
            server.count_streams()
        return sum(s.stream_seconds for s in servers), sum(s.squared_stream_seconds for s in servers)

    def cache_shares(self) -> tuple[float, float]:
        """Shares of the caches whose size is known: (held by requests now, expected to be held)."""
        known = [
            (s, s.capacity.cache_tokens) for s in self._members.servers.values() if s.capacity is not None
        ]
        room = max(1, sum(tokens for _, tokens in known))
        held, expected = sum(s.held_tokens for s, _ in known), sum(s.expected_tokens for s, _ in known)
        return held / room, expected / room

    def num_retractions(self) -> int:
        return sum(server.num_retractions for server in self._members.all())
