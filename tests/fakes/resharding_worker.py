"""One of several ranks that load a checkpoint in one layout after another, and write what they hold.

    python -m fakes.resharding_worker CASES   (under torchrun's environment variables)

CASES is a JSON list of objects: model, dtype, algorithm, parallel, read, written; the last two are folders of
checkpoints. Without "read" the ranks take two steps first.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from fakes.models import random_batch
from fakes.recipes import make_recipe

TRAINER = {"tokens_per_micro_batch": 60, "learning_rate": 1e-2, "warmup_steps": 3}


def rewrite(case: dict) -> None:
    from asyncrl.model.folder import check_model_folder
    from asyncrl.model.layout import check_layout
    from asyncrl.trainer import ranks
    from asyncrl.trainer.checkpoint import Checkpoints
    from asyncrl.trainer.learner import Learner

    model = Path(case["model"])
    count = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = TRAINER | {"num_processes": count, "parallel": case["parallel"]}
    recipe = make_recipe(
        model, trainer=trainer, model={"dtype": case["dtype"]}, algorithm=case.get("algorithm", {})
    )
    shape = check_model_folder(model)
    ranks.arrange(check_layout(recipe.trainer, shape), seed=0)
    learner = Learner(shape, recipe)
    if case.get("read") is None:
        learner.load_base()
        for step in range(2):
            learner.step(random_batch(step, num_groups=6))
    else:
        assert Checkpoints(Path(case["read"]), num_kept=1).load_newest(learner) == 2
    Checkpoints(Path(case["written"]), num_kept=1).save(learner, 2)


def main() -> None:
    warnings.filterwarnings("ignore")
    from asyncrl.trainer import ranks

    ranks.start(threads=1, seed=0)
    for case in json.loads(sys.argv[1]):
        rewrite(case)
    torch.distributed.barrier()
    ranks.stop()


if __name__ == "__main__":
    main()
