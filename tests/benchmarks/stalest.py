"""The `asyncrl` command, but every batch is as stale as rollout.max_staleness allows.

    python tests/benchmarks/stalest.py train RECIPE [section.key=value ...]

The update from version s trains a batch that version max(0, s - max_staleness) sampled whole. No recipe can
ask for this: it only makes sense to measure what staleness does to a whole run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asyncrl.commands import main as cli
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue

choose_ready = ReplayQueue.choose


def choose_stalest(queue: ReplayQueue, step: int) -> list[Group] | None:
    """The oldest groups, once all groups that the bound admits are ready; None before."""
    is_full = not queue.can_admit() and all(g.state is GroupState.READY for g in queue.live.values())
    return choose_ready(queue, step) if is_full else None


if __name__ == "__main__":
    ReplayQueue.choose = choose_stalest  # type: ignore[method-assign]
    sys.exit(cli.main())
