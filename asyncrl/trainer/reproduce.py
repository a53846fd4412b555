"""One rank of `asyncrl reproduce`: `python -m asyncrl.trainer.reproduce --run-folder RUN --step N`.

Trains the recorded batches again from a checkpoint and compares every number with the recorded one. Writes
nothing. Exit code 0 when all are identical to the last digit, 1 when not, 2 for what cannot be repeated.
"""

import argparse
import logging
import math
import sys
import warnings
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.folder import check_model_folder
from asyncrl.model.layout import check_layout
from asyncrl.replay.recovery import load_batch
from asyncrl.reproduction import LAYOUT, Reproduction, plan_reproduction
from sandbox.kernel import die_with_parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="asyncrl.trainer.reproduce", description=__doc__)
    parser.add_argument("--run-folder", type=Path, required=True)
    parser.add_argument("--step", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        plan = plan_reproduction(arguments.run_folder, arguments.step)
        shape = check_model_folder(Path(plan.recipe.model.path))
        layout = check_layout(plan.recipe.trainer, shape)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore", module=r"(megatron|torch\.distributed)\..*")
    from asyncrl.trainer import ranks

    # Laid out as the run was: other ranks would add the same numbers up in another order.
    section = plan.recipe.trainer
    ranks.start(threads=section.threads_per_process, seed=plan.recipe.seed, layout=layout)
    from asyncrl.trainer.learner import Learner

    is_identical = _repeat(Learner(shape, plan.recipe), plan, arguments.step)
    ranks.stop()
    return 0 if is_identical else 1


def _repeat(learner: Any, plan: Reproduction, last: int) -> bool:
    from asyncrl.trainer import ranks
    from asyncrl.trainer.checkpoint import Checkpoints
    from asyncrl.trainer.convert import load_weights
    from asyncrl.trainer.export import open_weights

    source = f"checkpoint step-{plan.begin}"
    if plan.begin:
        Checkpoints(plan.checkpoints, num_kept=1).load(learner, plan.begin)
    else:
        source = f"the base model {plan.recipe.model.path} (no checkpoint before it)"
        load_weights(learner.model, open_weights(Path(plan.recipe.model.path)))
        learner.weights_changed()
    say = print if ranks.is_first() else _say_nothing
    say(f"steps {plan.begin + 1} to {last} again, from {source}", flush=True)
    differing: dict[int, list[str]] = {}
    for step in range(plan.begin + 1, last + 1):
        metrics = learner.step(load_batch(plan.journal, step - 1, plan.recipe.rollout.temperature))
        recorded = plan.recorded.get(step)
        if recorded is not None and (names := differences(recorded, metrics)):
            differing[step] = names
        if step == last:
            say(table(recorded or {}, metrics))
    say(_verdict(plan, last, differing))
    return not differing


def differences(recorded: dict[str, Any], computed: dict[str, float]) -> list[str]:
    """Names of the numbers that are not the same; what is no number is recorded as null."""
    return [name for name, value in computed.items() if recorded.get(name) != _recordable(value)]


def table(recorded: dict[str, Any], computed: dict[str, float]) -> str:
    """A line per number: recorded, computed again, and a mark where they differ."""
    rows = [f"  {'':22s} {'recorded':>24s} {'again':>24s}"]
    for name, value in computed.items():
        old, new = recorded.get(name), _recordable(value)
        rows.append(f"  {name:22s} {old!s:>24s} {new!s:>24s}" + ("" if old == new else "  differs"))
    return "\n".join(rows)


def _verdict(plan: Reproduction, last: int, differing: dict[int, list[str]]) -> str:
    if not differing:
        return f"step {last} is identical to the last digit."
    first, names = next(iter(differing.items()))
    layout = ", ".join(f"trainer.{key} {getattr(plan.recipe.trainer, key)}" for key in LAYOUT)
    return (
        f"step {first} is the first that is not what was recorded: {', '.join(names)}. Seed, batches and "
        f"layout were the recorded ones ({layout}). What remains: another version of asyncrl or torch, "
        f"another machine, a base model that was made again, or a step that depends on more than its batch."
    )


def _recordable(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _say_nothing(*_: object, **__: object) -> None:
    """Ranks other than the first hold the same numbers."""


if __name__ == "__main__":
    sys.exit(main())
