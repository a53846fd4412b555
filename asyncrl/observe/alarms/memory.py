"""Memory that grows from step to step, or that nears the limit of a control group."""

from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.rounding import as_percent

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
            # Processes are measured every few seconds, in which a small model makes many steps.
            now, settled = history.latest(column), history.settled(column)
            if now is None or not settled or now - settled < LEAST_GROWTH_GIB:
                continue
            if now > self.limit * settled:
                text = f"the memory of {part} grew from {settled:.1f} to {now:.1f} GiB"
                return Finding(now / settled, self.limit, text)
        return None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Processes wait for memory, or are about to: the run is slow long before anything is killed."""

    limit_share: float | None
    stall_share: float | None
    name: str = "memory_limit"
    key: str = "alarms.memory_limit_share, alarms.memory_stall_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        used, stalled = history.now("memory_limit_share"), history.now("memory_stall_share")
        if self.stall_share is not None and stalled is not None and stalled > self.stall_share:
            text = (
                f"processes waited for memory in {as_percent(stalled)} of the time: the run is near the "
                f"limit of its control group (container, Slurm), and slow"
            )
            return Finding(stalled, self.stall_share, text)
        if self.limit_share is None or used is None or used <= self.limit_share:
            return None
        text = (
            f"{as_percent(used)} of the memory that the control group (container, Slurm) allows is in use: "
            f"processes will wait for memory, then be killed"
        )
        return Finding(used, self.limit_share, text)
