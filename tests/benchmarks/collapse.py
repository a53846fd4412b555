"""How early the alarm `effective_samples` is before a collapse: `collapse.py [--seeds 0,1,2] [--rate 4e-4]`.

Runs that go wrong, on the sums of recipes/r1_zero_arithmetic_cpu.yaml: no importance weights, batches of
exactly --lag versions ago, a learning rate that is too high. One process takes the place of the servers
(forced_lag.py), and the rows of the steps go through the alarms, as in `asyncrl train`.

A run has collapsed at the first step at which the mean reward of COLLAPSE_STEPS batches is below half of its
best so far: of the batches that steps learn from, and of those that the policy samples meanwhile, which a
step learns from --lag steps later. Prints a Markdown row per seed. Ends with 1 unless the alarm came before
the collapse of every seed.
"""

import argparse
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from asyncrl.launch.prepare import prepare
from asyncrl.model.folder import check_model_folder
from asyncrl.observe.alarms.watch import AlarmWatch, rules_of
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.trainer.ranks import ranks
from tests.benchmarks.forced_lag import Row, Sampler, mean_reward, read_rows, train

RECIPE = Path(__file__).parents[2] / "recipes" / "r1_zero_arithmetic_cpu.yaml"
COLLAPSE_STEPS = 3
ALARM = "effective_samples"


@dataclass(frozen=True)
class Setting:
    """A run that goes wrong."""

    seed: int = 0
    lag: int = 8
    learning_rate: float = 4e-4
    num_steps: int = 56
    num_groups: int = 8
    group_size: int = 8
    importance_weight: str = "none"
    adam_epsilon: float = 1e-8
    """The default, which the recipe raises: at 1e-6 seed 0 collapses 13 steps later, past num_steps."""

    def recipe(self) -> Recipe:
        return load_recipe(
            RECIPE,
            [
                f"seed={self.seed}",
                f"rollout.max_staleness={self.lag}",
                f"rollout.groups_per_batch={self.num_groups}",
                f"rollout.samples_per_group={self.group_size}",
                f"trainer.learning_rate={self.learning_rate}",
                f"trainer.num_steps={self.num_steps}",
                f"algorithm.importance_weight={self.importance_weight}",
                f"trainer.adam_epsilon={self.adam_epsilon}",
            ],
        )


@dataclass(frozen=True)
class Course:
    """The course of a run, by step, counted from 1."""

    rewards: list[float]
    """Mean reward of each step's batch."""
    effective: list[float]
    """Effective sample size of its sequences, as a share."""
    sampled: list[float]
    """Mean reward of what each version samples, from version 0 on; learned from `lag` steps later."""
    alarm: int | None
    """First step with the alarm."""

    def leads(self) -> tuple[int | None, int | None]:
        """Steps from the alarm to the collapse of what steps learn from, and of what the policy samples
        meanwhile; None without alarm or collapse."""
        # Version n samples when step n is over.
        return self._lead(collapsed_at(self.rewards)), self._lead(collapsed_at(self.sampled[1:]))

    def _lead(self, collapse: int | None) -> int | None:
        return None if self.alarm is None or collapse is None else collapse - self.alarm


def collapsed_at(rewards: list[float]) -> int | None:
    """The step, from 1, at which the mean of the last COLLAPSE_STEPS rewards is below half of the best."""
    best = 0.0
    for end in range(COLLAPSE_STEPS, len(rewards) + 1):
        mean = sum(rewards[end - COLLAPSE_STEPS : end]) / COLLAPSE_STEPS
        best = max(best, mean)
        if mean < best / 2:
            return end
    return None


def course_of(setting: Setting, rows: list[Row]) -> Course:
    """Trains until the collapse or the last step. Torch's process group is there already."""
    # Megatron may only be imported once a rank has started.
    from asyncrl.trainer.parts.table import build_learner

    recipe = setting.recipe()
    torch.manual_seed(setting.seed)
    learner = build_learner(check_model_folder(Path(recipe.model.path)), recipe)
    learner.load_base()
    sampler = Sampler(recipe, rows, learner.unsampled.ids)
    watch = AlarmWatch(rules_of(recipe.alarms, groups_per_batch=setting.num_groups), run="collapse")
    rewards, effective, sampled, alarm = list[float](), list[float](), list[float](), None
    for update in train(learner, sampler, setting.lag, setting.num_steps):
        rewards.append(mean_reward(update.batch))
        sampled.append(mean_reward(update.sampled))
        effective.append(update.metrics["sequence_effective_share"])
        row = update.metrics | {
            "step": update.version,
            "reward_mean": rewards[-1],
            "correct_mean": rewards[-1],
        }
        begun = [found for found in watch.step(row) if found.name == ALARM and found.is_on]
        for found in begun:
            watch.admit(found)
        if begun and alarm is None:
            alarm = update.version
        if collapsed_at(rewards) is not None:
            break
    return Course(rewards, effective, sampled, alarm)


def training_rows() -> list[Row]:
    """The training rows of the recipe, made with its base model where they are not there yet."""
    recipe = load_recipe(RECIPE)
    prepare(recipe, RECIPE, [])
    return read_rows(recipe.data.train_sources()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--lag", type=int, default=Setting.lag)
    parser.add_argument("--rate", type=float, default=Setting.learning_rate)
    parser.add_argument("--steps", type=int, default=Setting.num_steps)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    ranks.start(threads=1, seed=0)
    rows = training_rows()
    print(
        "| seed | best reward | alarm at step | steps to the collapse | to that of new samples |", flush=True
    )
    print("|---|---|---|---|---|", flush=True)
    leads = []
    for seed in map(int, arguments.seeds.split(",")):
        setting = Setting(seed, arguments.lag, arguments.rate, arguments.steps)
        course = course_of(setting, rows)
        leads += course.leads()
        cells = [seed, f"{max(course.rewards):.2f}", course.alarm, *course.leads()]
        print(f"| {' | '.join('-' if cell is None else str(cell) for cell in cells)} |", flush=True)
        for name in ("rewards", "sampled", "effective"):
            print(f"  {name}: {' '.join(f'{value:.2f}' for value in getattr(course, name))}", flush=True)
    ranks.stop()
    return 0 if all(lead is not None and lead > 0 for lead in leads) else 1


if __name__ == "__main__":
    sys.exit(main())
