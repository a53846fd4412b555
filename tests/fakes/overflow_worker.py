"""One of two ranks whose gradient overflows on the second alone, under one layout after another.

    python -m fakes.overflow_worker MODEL LAYOUTS   (under torchrun's environment variables)

LAYOUTS is a JSON list of trainer.parallel. Fails unless both ranks skip the step and halve their scale.
"""

import json
import math
import sys
import warnings
from pathlib import Path

import torch
from fakes.models import random_batch
from fakes.recipes import make_recipe


def main() -> None:
    warnings.filterwarnings("ignore")
    from asyncrl.model.folder import check_model_folder
    from asyncrl.model.layout import check_layout
    from asyncrl.trainer.parts.table import build_learner
    from asyncrl.trainer.ranks import ranks
    from asyncrl.trainer.step import learner as learner_module

    model = Path(sys.argv[1])
    shape = check_model_folder(model)
    ranks.start(threads=1, seed=0)
    divide = learner_module.divide_gradients

    def spoil(chunks: list, denominator: torch.Tensor) -> None:
        divide(chunks, denominator)
        if not ranks.is_first():
            # Its own share of the gradient, where ranks share the optimizer's state.
            gradient = chunks[0].buffers[0].grad_data
            gradient[len(gradient) // 2 :] = math.inf

    for parallel in json.loads(sys.argv[2]):
        trainer = {"num_processes": 2, "parallel": parallel, "initial_loss_scale": 64.0}
        recipe = make_recipe(model, model={"dtype": "float16"}, trainer=trainer)
        ranks.arrange(check_layout(recipe, shape), seed=0)
        learner = build_learner(shape, recipe)
        learner.load_base()
        before = [parameter.clone() for parameter in learner.model.parameters()]
        learner_module.divide_gradients = spoil
        skipped = learner.step(random_batch(0))
        assert (skipped["skipped_steps"], skipped["loss_scale"]) == (1.0, 32.0), (parallel, skipped)
        after = list(learner.model.parameters())
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), parallel
        learner_module.divide_gradients = divide
        taken = learner.step(random_batch(1))
        assert (taken["skipped_steps"], taken["loss_scale"]) == (0.0, 32.0), (parallel, taken)
        assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), parallel
    torch.distributed.barrier()
    ranks.stop()


if __name__ == "__main__":
    main()
