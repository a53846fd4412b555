"""Part `kill`: a rank is killed behind its checkpoint; its losses are those of a run that was not killed.

Batches are prepared, so that both runs learn from the same; `trainer.deterministic` makes steps repeatable.
"""

import signal

from fakes.launch_trainer import finish_trainer, read_log, start_trainer
from fakes.models import random_batch
from fakes.queue_service import FakeQueueService
from fakes.recipes import make_recipe

from asyncrl.recipe import Recipe
from tests.benchmarks.acceptance.checks import Check, Checks, Setting, end
from tests.benchmarks.acceptance.models import VOCABULARY, write_small

NUM_STEPS = 4
KILLED_AT = 3
START_SECONDS = 100.0
COMPARED = ("loss", "grad_norm", "entropy")


def new_queue() -> FakeQueueService:
    return FakeQueueService([random_batch(step, vocabulary=VOCABULARY) for step in range(NUM_STEPS)])


def numbers_of(queue: FakeQueueService) -> dict[int, tuple[float, ...]]:
    """Step -> what is compared, as it was told last."""
    told = [take.step_metrics for take in queue.takes if take.step_metrics]
    return {int(each["step"]): tuple(each[name] for name in COMPARED) for each in told}


def straight(setting: Setting, recipe: Recipe) -> dict[int, tuple[float, ...]]:
    """Raises ValueError where the trainer did not end well."""
    with new_queue() as queue:
        folder = setting.folder / "straight"
        codes = finish_trainer(start_trainer(folder, queue.url, recipe), timeout_seconds=START_SECONDS)
        if any(codes):
            raise ValueError(f"the trainer ended with {codes}: {read_log(folder).strip().splitlines()[-1]}")
        return numbers_of(queue)


def killed(setting: Setting, recipe: Recipe, check: Check) -> dict[int, tuple[float, ...]]:
    """The last rank is killed when the first one asks for the batch of step `KILLED_AT` + 1."""
    folder = setting.folder / "killed"
    with new_queue() as queue:
        queue.hold(KILLED_AT)
        ranks = start_trainer(folder, queue.url, recipe)
        try:
            queue.wait_for_take(KILLED_AT, timeout_seconds=START_SECONDS)
            queue.wait_for_commit(KILLED_AT - 1, timeout_seconds=START_SECONDS)
            ranks[-1].send_signal(signal.SIGKILL)
            ranks[-1].wait(30)
        finally:
            # As the launcher does with the others.
            for rank in ranks:
                rank.kill()
                rank.wait()
        queue.release()
        codes = finish_trainer(start_trainer(folder, queue.url), timeout_seconds=START_SECONDS)
        if any(codes):
            raise ValueError(f"the restarted trainer ended with {codes}: {read_log(folder)[-200:]}")
        asked = [take.version for take in queue.takes]
        check.require(asked.count(KILLED_AT - 1) == 2, f"it asked for the batches {asked}")
        return numbers_of(queue)


def work(checks: Checks, setting: Setting) -> None:
    model = write_small(setting.folder / "model", seed=0)
    num_ranks = max(1, min(2, setting.num_gpus))
    recipe = make_recipe(
        model,
        model={"dtype": setting.dtype},
        placement={"device": setting.device},
        trainer={
            "num_steps": NUM_STEPS,
            "checkpoint_every_steps": 2,
            "learning_rate": 1e-3,
            "deterministic": True,
            "num_processes": num_ranks,
        },
    )
    advice = "Do not rely on resuming here: compare the logs in kill/straight and kill/killed."
    wanted: dict[int, tuple[float, ...]] = {}
    setting.name_without_second_gpu(checks, "a second trainer rank, gradients summed by NCCL")
    with checks.row(f"{NUM_STEPS} steps of {num_ranks} rank(s)", advice) as check:
        wanted = straight(setting, recipe)
        check.figure = "losses " + ", ".join(f"{wanted[step][0]:.6f}" for step in sorted(wanted))
        check.require(sorted(wanted) == list(range(1, NUM_STEPS + 1)), "steps are missing")
    with checks.row("a rank killed with SIGKILL resumes to the same losses", advice) as check:
        check.require(bool(wanted), "there is no run to compare with")
        found = killed(setting, recipe, check)
        worst = max(
            abs(a - b) for step, numbers in wanted.items() for a, b in zip(numbers, found[step], strict=True)
        )
        check.figure = f"largest difference of {', '.join(COMPARED)} over {len(wanted)} steps: {worst:g}"
        check.require(worst == 0.0, "steps differ from those of the run that was not killed")


if __name__ == "__main__":
    end(work)
