"""The trainer process: `python -m asyncrl.trainer.main --run-folder RUN --queue-url URL`, one per rank.

The launcher starts them, or torchrun does: rank and rendezvous come from torchrun's environment variables.
Ends when the queue ends the run. Ctrl-C in a terminal reaches every process of the group, and what Slurm
sends at a time limit every process of the job: this one ignores both and waits for the controller's end of
run, which comes after a checkpoint. It dies when its parent does.
"""

import argparse
import logging
import signal
import sys
from pathlib import Path

from asyncrl.recipe.file import load_recipe
from asyncrl.system.places import RECIPE
from asyncrl.trainer.bootstrap import run_rank, start_learner


def main() -> int:
    arguments = _parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stdout, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("asyncrl").setLevel(logging.INFO)
    return run_rank(lambda: _train(arguments.run_folder, arguments.queue_url, arguments.files_url))


def _train(run_folder: Path, queue_url: str, files_url: str) -> int:
    recipe = load_recipe(run_folder / RECIPE)
    learner = start_learner(recipe)
    from asyncrl.trainer.loop import train

    train(learner, recipe, run_folder=run_folder, queue_url=queue_url, files_url=files_url)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="asyncrl.trainer.main", description=__doc__)
    parser.add_argument("--run-folder", type=Path, required=True, help="holds recipe.yaml, resolved")
    parser.add_argument("--queue-url", required=True, help="the controller's replay queue")
    parser.add_argument(
        "--files-url", default="", help="hands out the run folder, where the controller does not see it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
