"""Memory that grows from step to step."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding

LEAST_GROWTH_GIB = 0.5
"""Below this, growth is caches and arenas of small processes."""
PARTS = {
    "controller_memory_gib": "the controller",
    "trainer_memory_gib": "the largest trainer rank",
    "server_memory_gib": "the largest rollout server",
}


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """A process holds far more than when it had settled."""

    limit: float
    name: str = "memory_growth"
    key: str = "alarms.memory_growth"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        for column, part in PARTS.items():
            now, settled = history.now(column), history.settled(column)
            if now is None or not settled or now - settled < LEAST_GROWTH_GIB:
                continue
            if now > self.limit * settled:
                text = f"the memory of {part} grew from {settled:.1f} to {now:.1f} GiB"
                return Finding(now / settled, self.limit, text)
        return None
