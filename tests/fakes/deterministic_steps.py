"""Metrics of two deterministic steps, as JSON: `python -m fakes.deterministic_steps MODEL DTYPE VOCABULARY`.

In a process of its own, because torch's flag and the variables of its libraries are the process's.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from fakes.models import random_batch
from fakes.recipes import make_recipe

# A KL in the reward takes running sums, of which torch has no deterministic kind on a GPU.
ALGORITHM = {"advantage": "reinforce_pp", "kl": {"coefficient": 0.1, "place": "reward"}}
TRAINER = {"deterministic": True, "learning_rate": 1e-3, "tokens_per_micro_batch": 60}


def main() -> None:
    warnings.filterwarnings("ignore")
    from asyncrl.trainer.bootstrap import start_learner

    folder, dtype, vocabulary = sys.argv[1:]
    recipe = make_recipe(Path(folder), trainer=TRAINER, algorithm=ALGORITHM, model={"dtype": dtype})
    learner = start_learner(recipe)
    learner.load_base()
    assert torch.are_deterministic_algorithms_enabled() and learner.model.config.deterministic_mode
    batches = (random_batch(step, vocabulary=int(vocabulary)) for step in range(2))
    print(json.dumps([learner.step(batch) for batch in batches]))


if __name__ == "__main__":
    main()
