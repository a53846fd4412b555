"""One rank of an export: `python -m asyncrl.trainer.export_steps --run-folder RUN --steps N ...`.

Writes the checkpoint of each step as a Hugging Face folder beside it, in the run's layout, where the run
itself did not: it exports its last step and, with trainer.keep_best, its best one.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrl.model.source import model_folder
from asyncrl.run.folder import read_run_recipe
from asyncrl.system.places import CHECKPOINTS
from asyncrl.trainer.bootstrap import run_rank, start_learner


def main() -> int:
    parser = argparse.ArgumentParser(prog="asyncrl.trainer.export_steps", description=__doc__)
    parser.add_argument("--run-folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    return run_rank(lambda: _export(arguments.run_folder, arguments.steps), has_launcher=False)


def _export(run_folder: Path, steps: Sequence[int]) -> int:
    recipe = read_run_recipe(run_folder)
    learner = start_learner(recipe)
    from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
    from asyncrl.trainer.network.export import export_version

    checkpoints = Checkpoints(run_folder / CHECKPOINTS, num_kept=1)
    for step in steps:
        checkpoints.load(learner, step)
        export_version(
            learner.model,
            checkpoints.path(step),
            base=model_folder(recipe.model),
            base_name=learner.base_name,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
