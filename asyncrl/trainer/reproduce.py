"""One rank of `asyncrl reproduce`: `python -m asyncrl.trainer.reproduce --run-folder RUN --step N`.

Trains the recorded batches again, in the run's layout, from a checkpoint, and compares every number with the
recorded one: to the last digit, but within a tolerance on a GPU without `trainer.deterministic`. Writes
nothing. Exit code 0 when all are the same, 1 when not, 2 for what cannot be reproduced.
"""

import argparse
import logging
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from asyncrl.journal.queue_state import load_batch
from asyncrl.recipe import Recipe
from asyncrl.recipe.sections.section import LAYOUT, marked, value_at
from asyncrl.run.metrics_file import Row
from asyncrl.run.reproduction import Reproduction, plan_reproduction
from asyncrl.trainer.bootstrap import run_rank, start_learner
from asyncrl.trainer.ranks import ranks

if TYPE_CHECKING:
    from asyncrl.trainer.step.learner import Learner


TOLERANCE = 0.02
"""Relative difference allowed between two computations on a GPU without `trainer.deterministic`, whose
threads set the order of its sums. An estimate; a step amplifies the differences left by the one before it."""
SMALLEST = 1e-3
"""Differences below it are none: of numbers near zero, such as a mean loss, rounding is the larger part."""
EXACT = ("num_", "learning_rate", "critic_learning_rate")
"""Beginnings of the names of what is counted or set, not summed up."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="asyncrl.trainer.reproduce", description=__doc__)
    parser.add_argument("--run-folder", type=Path, required=True)
    parser.add_argument("--step", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    return run_rank(lambda: _reproduce(arguments.run_folder, arguments.step), has_launcher=False)


def _reproduce(run_folder: Path, last: int) -> int:
    plan = plan_reproduction(run_folder, last)
    # In the run's own layout: another would add the same numbers in another order. Without the columns that
    # need versions before the checkpoint.
    learner = start_learner(plan.recipe, plan.unsampled, remembers=False)
    from asyncrl.trainer.checkpoints.checkpoint import Checkpoints

    Checkpoints(plan.checkpoints, num_kept=1).load(learner, plan.begin)
    return 0 if _train_again(learner, plan, last) else 1


def _train_again(learner: "Learner", plan: Reproduction, last: int) -> bool:
    source = f"the base model {plan.recipe.model.path} (no checkpoint before it)"
    if plan.begin:
        source = f"checkpoint step-{plan.begin}"
    _print(f"steps {plan.begin + 1} to {last} again, from {source}")
    exactly = is_exact(deterministic=plan.recipe.trainer.deterministic)
    differing: dict[int, list[str]] = {}
    for step in range(plan.begin + 1, last + 1):
        learner.set_schedules(plan.recipe_of(step))
        metrics = learner.step(load_batch(plan.journal, step - 1, plan.recipe.rollout.temperature))
        recorded = plan.recorded.get(step)
        if recorded is not None and (names := differences(recorded, metrics, exactly=exactly)):
            differing[step] = names
        if step == last:
            _print(table(recorded or {}, metrics, exactly=exactly))
    _print(_verdict(plan, last, differing, exactly=exactly))
    return not differing


def differences(recorded: Row, computed: Mapping[str, float], *, exactly: bool) -> list[str]:
    """Names of the numbers that differ; one that is not finite was recorded as null."""
    return [
        name
        for name, value in computed.items()
        if not is_same(name, recorded.get(name), _recordable(value), exactly=exactly)
    ]


def is_exact(*, deterministic: bool) -> bool:
    """Whether this process computes the same bits twice."""
    return deterministic or not torch.cuda.is_available()


def is_same(name: str, recorded: float | None, again: float | None, *, exactly: bool) -> bool:
    """Whether a metric of a step is the recorded one, where None stands for a number that is not finite."""
    if recorded == again:
        return True
    if exactly or name.startswith(EXACT) or recorded is None or again is None:
        return False
    return abs(recorded - again) <= max(SMALLEST, TOLERANCE * abs(recorded))


def table(recorded: Row, computed: Mapping[str, float], *, exactly: bool) -> str:
    """A line per number: recorded, computed again, and a mark where they differ."""
    rows = [f"  {'':22s} {'recorded':>24s} {'again':>24s}"]
    for name, value in computed.items():
        old, new = recorded.get(name), _recordable(value)
        mark = "" if is_same(name, old, new, exactly=exactly) else "  differs"
        rows.append(f"  {name:22s} {old!s:>24s} {new!s:>24s}{mark}")
    return "\n".join(rows)


def _verdict(plan: Reproduction, last: int, differing: dict[int, list[str]], *, exactly: bool) -> str:
    if not differing and exactly:
        return f"step {last} is identical to the last digit."
    if not differing:
        return (
            f"step {last} is the same within {TOLERANCE:.0%} of each number, or {SMALLEST:g}: without "
            f"trainer.deterministic a GPU does not repeat the last digits."
        )
    first, names = next(iter(differing.items()))
    layout = ", ".join(f"{key} {value_at(plan.recipe, key)}" for key in marked(Recipe, LAYOUT))
    return (
        f"step {first} is the first that differs from the record: {', '.join(names)}. Seed, batches and "
        f"layout were the recorded ones ({layout}). What remains: another version of asyncrl or torch, "
        f"another machine, a base model that was made again, or a step that depends on more than its batch."
    )


def _recordable(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _print(text: str) -> None:
    """Prints on the first rank; the others hold the same numbers."""
    if ranks.is_first():
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
