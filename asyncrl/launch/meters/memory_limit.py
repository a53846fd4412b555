"""How near the memory of a run's control group is to its limit, and how long its processes waited for memory.

Near the limit the kernel takes pages of programs and files away and reads them again as they are needed: all
is slow, and nothing fails.
"""

import time
from collections.abc import Callable

from asyncrl.system.memory import GroupMemory, group_memory


class MemoryLimitMeter:
    """Owns what was measured at the last call."""

    def __init__(
        self,
        measure: Callable[[], GroupMemory | None] = group_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure = measure
        self._clock = clock
        self._seconds = clock()
        self._before = measure()

    def row(self) -> dict[str, float]:
        """memory_limit_share, and memory_stall_share of the time since the last call; those that there
        are."""
        now, seconds = self._measure(), self._clock()
        before, passed = self._before, seconds - self._seconds
        self._before, self._seconds = now, seconds
        if now is None:
            return {}
        row = {"memory_limit_share": round(now.used_share, 4)}
        # Another group may be the nearest now, which has its own count.
        if before is None or before.limit != now.limit or passed <= 0:
            return row
        if before.stalled_seconds is not None and now.stalled_seconds is not None:
            stalled = max(0.0, now.stalled_seconds - before.stalled_seconds)
            row["memory_stall_share"] = round(min(1.0, stalled / passed), 4)
        return row
