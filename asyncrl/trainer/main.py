"""The trainer process: `python -m asyncrl.trainer.main --run-folder RUN --queue-url URL`, one per rank.

The launcher starts them, or torchrun does: rank and rendezvous come from torchrun's environment variables.
Ends when the queue says so. Ctrl-C in a terminal reaches every process of the group: this one ignores it and
waits for the controller's end of run, and it dies when its parent does.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from asyncrl.algorithms.contract import check_terms
from asyncrl.errors import DiskError, Diverged, InputError
from asyncrl.model.folder import check_model_folder
from asyncrl.model.layout import check_layout
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from sandbox.kernel import die_with_parent

log = logging.getLogger("asyncrl.trainer")


def main() -> int:
    arguments = _parse_arguments()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stdout, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("asyncrl").setLevel(logging.INFO)
    try:
        recipe = load_recipe(arguments.run_folder / "recipe.yaml")
        _check_ranks(recipe)
        shape = check_model_folder(Path(recipe.model.path))
        layout = check_layout(recipe.trainer, shape)
        check_terms(recipe.algorithm)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    # Megatron warns of each CUDA package that is missing; on a CPU all of them are.
    warnings.filterwarnings("ignore", module=r"megatron\..*")
    from asyncrl.trainer import ranks

    ranks.start(threads=recipe.trainer.threads_per_process, seed=recipe.seed, layout=layout)
    if not ranks.is_first():
        logging.getLogger("asyncrl").setLevel(logging.WARNING)
    from asyncrl.trainer.learner import Learner
    from asyncrl.trainer.loop import train

    millions = shape.num_parameters() / 1e6
    log.info("%s, %.1f million parameters, %s", shape.architecture, millions, recipe.model.dtype)
    try:
        train(Learner(shape, recipe), recipe, run_folder=arguments.run_folder, queue_url=arguments.queue_url)
    except DiskError as error:
        end_on_full_disk(error)
    except Diverged as error:
        # The sentence alone: a traceback says nothing of what to do.
        print(f"{Diverged.__name__}: {error}", file=sys.stderr, flush=True)
        return Diverged.EXIT_CODE
    ranks.stop()
    return 0


def end_on_full_disk(error: DiskError) -> NoReturn:
    """Says it and ends with the exit code that says it too: the log may be on the same disk.

    At once, because Python ends with another code when it cannot flush what was printed.
    """
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{DiskError.__name__}: {error}\n".encode())
    os._exit(DiskError.EXIT_CODE)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="asyncrl.trainer.main", description=__doc__)
    parser.add_argument("--run-folder", type=Path, required=True, help="holds recipe.yaml, resolved")
    parser.add_argument("--queue-url", required=True, help="the controller's replay queue")
    return parser.parse_args()


def _check_ranks(recipe: Recipe) -> None:
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != recipe.trainer.num_processes:
        raise InputError(
            f"WORLD_SIZE is {started} but trainer.num_processes is {recipe.trainer.num_processes}: start one "
            f"process per rank, or set trainer.num_processes to {started}."
        )


if __name__ == "__main__":
    sys.exit(main())
