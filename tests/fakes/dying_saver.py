"""Saves version 1, then kills itself in the middle of saving version 2: MODEL CHECKPOINTS MOMENT.

MOMENT names the function of asyncrl.trainer.saving (save) or .checkpoint (sync_tree) after which it dies.
"""

import os
import signal
import sys
from pathlib import Path

from asyncrl.trainer import ranks


def main() -> None:
    ranks.start(threads=1, seed=0)
    from fakes.learners import make_learner
    from fakes.models import random_batch

    from asyncrl.trainer import checkpoint, saving

    model, folder, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    learner = make_learner(model)
    checkpoints = checkpoint.Checkpoints(folder, num_kept=2)
    learner.step(random_batch(0))
    checkpoints.save(learner, 1)
    learner.step(random_batch(1))
    module = saving if moment == "save" else checkpoint
    original = getattr(module, moment)

    def die(*arguments: object, **keywords: object) -> None:
        original(*arguments, **keywords)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, moment, die)
    checkpoints.save(learner, 2)


if __name__ == "__main__":
    main()
