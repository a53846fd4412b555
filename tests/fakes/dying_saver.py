"""Saves version 1, then kills itself in the middle of saving version 2: MODEL CHECKPOINTS MOMENT.

MOMENT names the function of trainer/checkpoints/checkpoint.py after which it dies; "half": some tensors
are written.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from asyncrl.trainer.ranks import ranks


def main() -> None:
    ranks.start(threads=1, seed=0)
    from fakes.learners import make_learner
    from fakes.models import random_batch

    from asyncrl.trainer.checkpoints import checkpoint

    model, folder, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    learner = make_learner(model)
    checkpoints = checkpoint.Checkpoints(folder, num_kept=2)
    learner.step(random_batch(0))
    checkpoints.save(learner, 1)
    learner.step(random_batch(1))
    if moment == "half":
        break_in_the_middle(kill_this_process)
    else:
        die_after(checkpoint, moment)
    checkpoints.save(learner, 2)


def die_after(module: ModuleType, name: str) -> None:
    original = getattr(module, name)

    def die(*arguments: object, **keywords: object) -> None:
        original(*arguments, **keywords)
        kill_this_process()

    setattr(module, name, die)


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def break_in_the_middle(fault: Callable[[], None], *, after: int = 60) -> None:
    """`fault` comes when `after` pieces of the next checkpoint are on disk."""
    from asyncrl.trainer.checkpoints.checkpoint_files import HashedStream

    written, original = 0, HashedStream.write

    def write(self: HashedStream, content: bytes) -> int:
        nonlocal written
        written += 1
        if written > after:
            self.flush()
            fault()
        return original(self, content)

    HashedStream.write = write


if __name__ == "__main__":
    main()
