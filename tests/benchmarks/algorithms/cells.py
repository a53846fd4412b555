"""Runs a cell by forced_lag.py: training on data of the cell's age, with its held-out curve."""

import functools
import gc
import json
import math
import os
import random
import subprocess
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import torch

from asyncrl.errors import Diverged
from asyncrl.model.folder import check_model_folder
from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.trainer.ranks import ranks
from tests.benchmarks.algorithms.noise import noised
from tests.benchmarks.algorithms.plan import EVERY_UPDATES, HELDOUT_TASKS, RECIPE, ROOT, Cell, Row
from tests.benchmarks.forced_lag import Sampler, Weights, mean_reward, own_weights, read_rows, train

if TYPE_CHECKING:
    from asyncrl.trainer.step.learner import Learner

RunCell = Callable[[Cell], Row]
CELLS_PER_PROCESS = 20


class CellFailed(Exception):
    """The run diverged; a next call runs the cell again."""


class Worker:
    """Runs cells in a process of its own on one core."""

    def __init__(self, core: int) -> None:
        # A process that imports torch afresh; now and then a new one, so that nothing piles up.
        self._pool = ProcessPoolExecutor(
            1, get_context("spawn"), _start, (core,), max_tasks_per_child=CELLS_PER_PROCESS
        )

    def __call__(self, cell: Cell) -> Row:
        """Raises CellFailed, KeyboardInterrupt where Ctrl-C ended the cell, and BrokenProcessPool."""
        return self._pool.submit(run_cell, cell).result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _start(core: int) -> None:
    os.sched_setaffinity(0, {core})
    warnings.filterwarnings("ignore")
    ranks.start(threads=1, seed=0)


def cell_recipe(cell: Cell) -> Recipe:
    keys = cell.keys()
    if keys.get("algorithm.surrogate") == "ratio":
        # It is in the digest, since COMMON states it, but a recipe may not state what nothing reads.
        del keys["algorithm.clip_high"]
    overrides = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    return load_recipe(ROOT / RECIPE, overrides)


def run_cell(cell: Cell) -> Row:
    """Trains the cell; torch's process group is there already. Raises CellFailed."""
    # Megatron may only be imported once a rank has started.
    from asyncrl.trainer.parts.table import build_learner

    cpu, wall = time.process_time(), time.monotonic()
    recipe = cell_recipe(cell)
    torch.manual_seed(cell.seed)
    learner = build_learner(check_model_folder(model_folder(recipe.model)), recipe)
    learner.load_base()
    tasks = read_rows(recipe.data.train_sources()[0])
    random.Random(cell.seed).shuffle(tasks)
    heldout = read_rows(recipe.data.heldout_sources()[0])[:HELDOUT_TASKS]
    sampler = Sampler(recipe, tasks, learner.unsampled.ids)
    weights_of = functools.partial(cell_weights, cell)

    def accuracy(version: int, temperature: float) -> float:
        return round(sampler.accuracy(weights_of(learner, version), heldout, temperature), 6)

    greedy = accuracy(0, 0.0)
    curve, rewards, kls = [(0, accuracy(0, 1.0))], list[float](), list[float]()
    try:
        for update in train(learner, sampler, cell.lag, cell.num_updates, weights_of):
            rewards.append(round(mean_reward(update.batch), 5))
            # NaN where no token is of the trainer's own version.
            if not math.isnan(kl := update.metrics["mismatch_kl"]):
                kls.append(kl)
            if (update.version - cell.lag) % EVERY_UPDATES == 0:
                curve.append((update.version, accuracy(update.version, 1.0)))
    except Diverged as error:
        raise CellFailed(f"{cell.name()} diverged: {error}") from None
    gc.collect()
    return Row(
        cell.axis,
        cell.arm,
        cell.lag,
        cell.noise,
        cell.seed,
        cell.rate,
        cell.digest(),
        curve,
        (greedy, accuracy(cell.num_updates, 0.0)),
        rewards,
        sum(kls) / len(kls) if kls else None,
        round(time.process_time() - cpu, 1),
        round(time.monotonic() - wall, 1),
        _commit(),
    )


def cell_weights(cell: Cell, learner: "Learner", version: int) -> Weights:
    """The weights of a version that sample, also the held-out answers."""
    weights = own_weights(learner, version)
    return noised(weights, version, cell.noise) if cell.noise else weights


@functools.cache
def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
