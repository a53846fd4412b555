"""The `asyncrl` command, but every batch is as stale as rollout.max_staleness allows: for the ablation.

    python tests/benchmarks/stalest.py train RECIPE [section.key=value ...]

The update from version s trains a batch that version max(0, s - max_staleness) sampled whole. No recipe can
ask for this: it only makes sense to measure what staleness costs. With ASYNCRL_ABLATION_NOISE the weights
that roll out are noised (algorithms/noise.py).
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asyncrl import cli
from asyncrl.launch.site.process import ChildProcess
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue

NOISY_TRAINER = Path(__file__).parent / "algorithms" / "noise.py"
TRAINER = ["-m", "asyncrl.trainer.main"]
choose_ready = ReplayQueue.choose
make_process = ChildProcess.__init__


def choose_stalest(queue: ReplayQueue, step: int) -> list[Group] | None:
    """The oldest groups, once all groups that the bound admits are ready; None before."""
    is_full = not queue.can_admit() and all(g.state is GroupState.READY for g in queue.live.values())
    return choose_ready(queue, step) if is_full else None


def make_noisy_process(process: ChildProcess, name: str, arguments: Sequence[str], **others: Any) -> None:
    """A trainer publishes noised weights; other processes are as they are."""
    if list(arguments[:2]) == TRAINER:
        arguments = [str(NOISY_TRAINER), *arguments[2:]]
    make_process(process, name, arguments, **others)


if __name__ == "__main__":
    ReplayQueue.choose = choose_stalest  # type: ignore[method-assign]
    if os.environ.get("ASYNCRL_ABLATION_NOISE"):
        ChildProcess.__init__ = make_noisy_process  # type: ignore[method-assign]
    sys.exit(cli.main())
