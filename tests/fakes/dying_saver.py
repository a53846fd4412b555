"""Saves version 1, then kills itself in the middle of saving version 2: MODEL CHECKPOINTS MOMENT.

MOMENT names the function of asyncrl.trainer.checkpoint after which it dies; "half": some tensors are written.
"""

import os
import signal
import sys
from pathlib import Path
from types import ModuleType

from asyncrl.trainer import ranks

WRITES_BEFORE_DEATH = 60


def main() -> None:
    ranks.start(threads=1, seed=0)
    from fakes.learners import make_learner
    from fakes.models import random_batch

    from asyncrl.trainer import checkpoint

    model, folder, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    learner = make_learner(model)
    checkpoints = checkpoint.Checkpoints(folder, num_kept=2)
    learner.step(random_batch(0))
    checkpoints.save(learner, 1)
    learner.step(random_batch(1))
    if moment == "half":
        write_half()
    else:
        die_after(checkpoint, moment)
    checkpoints.save(learner, 2)


def die_after(module: ModuleType, name: str) -> None:
    original = getattr(module, name)

    def die(*arguments: object, **keywords: object) -> None:
        original(*arguments, **keywords)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, die)


def write_half() -> None:
    from asyncrl.trainer.hashed_files import HashedStream

    written, original = 0, HashedStream.write

    def write(self: HashedStream, content: bytes) -> int:
        nonlocal written
        written += 1
        if written == WRITES_BEFORE_DEATH:
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, content)

    HashedStream.write = write


if __name__ == "__main__":
    main()
