"""One of two trainer ranks that meet, say so in a file, and then wait for each other.

    python -m fakes.lonely_rank FOLDER WORK   (under torchrun's environment variables)

WORK is "sum": sums in Megatron's data-parallel group without end; "alone": the first rank works alone without
end; "patience": it works alone for three timeouts, then both end well.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from asyncrl.trainer.bootstrap import run_rank
from asyncrl.trainer.ranks import ranks

TIMEOUT_SECONDS = 5.0


def work_alone(seconds: float) -> tuple[str, np.ndarray, np.ndarray]:
    time.sleep(seconds)
    return "the result", np.arange(4, dtype=np.uint8), np.empty(0, np.float32)


def main() -> int:
    folder, work = Path(sys.argv[1]), sys.argv[2]
    ranks.start(threads=1, seed=0, timeout=timedelta(seconds=TIMEOUT_SECONDS))
    from megatron.core import parallel_state

    group = parallel_state.get_data_parallel_group()
    dist.all_reduce(torch.ones(1), group=group)
    (folder / f"met-{dist.get_rank()}").touch()
    if work == "patience":
        words, numbers, none = ranks.first_alone(lambda: work_alone(3 * TIMEOUT_SECONDS))
        found = f"{words}: {numbers.tolist()} and {none.tolist()}"
        (folder / f"result-{dist.get_rank()}").write_text(found)
        return 0
    if work == "alone":
        ranks.first_alone(lambda: work_alone(600))
    while True:
        dist.all_reduce(torch.ones(1), group=group)


if __name__ == "__main__":
    sys.exit(run_rank(main))
