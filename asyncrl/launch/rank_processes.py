"""The ranks of a trainer without a controller, as `asyncrl reproduce` and an export start them."""

import os
import subprocess
import sys
from collections.abc import Sequence

from asyncrl.launch.placement import GpuMap, rank_name
from asyncrl.model.layout import rank_environment
from asyncrl.recipe import Recipe
from asyncrl.system.network import free_ports


def run_ranks(module: str, words: Sequence[str], recipe: Recipe, gpus: GpuMap) -> int:
    """Runs `module` once for each rank of the recipe's layout, until all have ended. 0, or the first exit
    code that is not; 1 where a signal ended a rank."""
    command = [sys.executable, "-P", "-m", module, *words]
    port = free_ports(1)[0]
    # Sessions of their own: Ctrl-C ends them by their parent alone, without a traceback from each.
    processes = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                **rank_environment(recipe.trainer, rank, port=port),
                **gpus.environment_of(rank_name(rank)),
            },
            start_new_session=True,
        )
        for rank in range(recipe.trainer.num_processes)
    ]
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return next((code if code > 0 else 1 for code in codes if code), 0)
