"""How early the alarm `effective_samples` is before a collapse: `collapse.py [--seeds 0,1,2] [--rate 4e-4]`.

Runs that go wrong, on the sums of recipes/r1_zero_arithmetic_cpu.yaml: no importance weights, batches of
exactly --lag versions ago, a learning rate that is too high. One process takes the place of the servers:
transformers samples each batch with the trainer's weights of that version, the recipe's verifier grades it,
the trainer's own step learns from it, and its rows go through the alarms, as in `asyncrl train`. So staleness
is the same on every machine, however busy, and the engines agree but for rounding.

A run has collapsed at the first step at which the mean reward of COLLAPSE_STEPS batches is below half of its
best so far: of the batches that steps learn from, and of those that the policy samples meanwhile, which a
step learns from --lag steps later. Prints a Markdown row per seed. Ends with 1 unless the alarm came before
the collapse of every seed.
"""

import argparse
import json
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import transformers
from torch import Tensor

from asyncrl.algorithms.advantages import GroupRewards, find_advantage, group_advantages
from asyncrl.launch.prepare import prepare
from asyncrl.model.folder import check_model_folder
from asyncrl.observe.alarms.watch import AlarmWatch, rules_of
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.ranks import ranks
from verifiers.registry import build_verifier

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


class Sampler:
    """Batches of one version of the policy, sampled by transformers and graded by the recipe's verifier."""

    def __init__(self, recipe: Recipe, rows: list[dict[str, Any]], suppressed: tuple[int, ...]) -> None:
        folder = recipe.model.path
        self._recipe, self._rows, self._suppressed = recipe, rows, list(suppressed)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._verifier = build_verifier(rows[0]["verifier"], {})
        self._advantage = find_advantage(recipe.algorithm)
        self._end = self._model.config.eos_token_id

    def batch(self, weights: Iterator[tuple[str, Tensor]], version: int, place: int) -> Batch:
        """The batch at `place` of the task file, of the policy `weights`, as sampled at `version`."""
        self._model.load_state_dict(dict(weights))
        rollout = self._recipe.rollout
        first = place * rollout.groups_per_batch
        rows = [self._rows[(first + i) % len(self._rows)] for i in range(rollout.groups_per_batch)]
        prompts = [self._tokenizer(row["prompt"])["input_ids"] for row in rows]
        each = [prompt for prompt in prompts for _ in range(rollout.samples_per_group)]
        responses = self._respond(each)
        sequences = []
        for group, row in enumerate(rows):
            own = responses[group * rollout.samples_per_group :][: rollout.samples_per_group]
            reference = self._verifier.parse_reference(row["answer"])
            texts = [self._tokenizer.decode(tokens, skip_special_tokens=True) for tokens, _ in own]
            rewards = [float(self._verifier.verify(text, reference).score or 0.0) for text in texts]
            known = GroupRewards(rewards, [len(tokens) for tokens, _ in own])
            advantages = group_advantages(known, self._advantage, self._recipe.algorithm)
            sequences += [
                ScoredSequence(
                    sequence_id=f"{place}-{group}-{i}",
                    prompt_tokens=prompts[group],
                    response_tokens=tokens,
                    behavior_logprobs=logprobs,
                    token_versions=[version] * len(tokens),
                    are_continued=[False] * len(tokens),
                    advantage=advantages[i],
                    reward=rewards[i],
                )
                for i, (tokens, logprobs) in enumerate(own)
            ]
        return Batch(version, rollout.temperature, sequences)

    @torch.no_grad()
    def _respond(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """(tokens, log-probs) of one response to each prompt, up to its end."""
        longest = max(map(len, prompts))
        tokens = torch.tensor([[self._end] * (longest - len(each)) + each for each in prompts])
        mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
        found = self._model.generate(
            tokens,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            suppress_tokens=self._suppressed or None,
            max_new_tokens=self._recipe.rollout.max_new_tokens,
            pad_token_id=self._end,
            output_scores=True,
            return_dict_in_generate=True,
        )
        sampled = found.sequences[:, longest:]
        scores = torch.stack(found.scores, dim=1).log_softmax(-1)
        logprobs = scores.gather(-1, sampled[..., None]).squeeze(-1)
        responses = []
        for own, values in zip(sampled.tolist(), logprobs.tolist(), strict=True):
            length = own.index(self._end) + 1 if self._end in own else len(own)
            responses.append((own[:length], values[:length]))
        return responses


def train(setting: Setting, rows: list[dict[str, Any]]) -> Course:
    """Trains until the collapse or the last step. Torch's process group is there already."""
    from asyncrl.trainer.step.learner import Learner

    recipe = setting.recipe()
    torch.manual_seed(setting.seed)
    learner = Learner(check_model_folder(Path(recipe.model.path)), recipe)
    learner.load_base()
    sampler = Sampler(recipe, rows, learner.unsampled.ids)
    watch = AlarmWatch(rules_of(recipe.alarms, groups_per_batch=setting.num_groups), run="collapse")
    waiting: deque[Batch] = deque()
    rewards, effective, sampled, alarm = list[float](), list[float](), list[float](), None
    for version in range(setting.num_steps):
        # At first the base model samples all that the staleness admits.
        while len(waiting) <= setting.lag:
            waiting.append(sampler.batch(export_weights(learner.model), version, version + len(waiting)))
            if version == len(sampled):
                sampled.append(mean_reward(waiting[-1]))
        batch = waiting.popleft()
        metrics = learner.step(Batch(version, batch.temperature, batch.sequences))
        rewards.append(mean_reward(batch))
        effective.append(metrics["sequence_effective_share"])
        row = metrics | {"step": version + 1, "reward_mean": rewards[-1], "correct_mean": rewards[-1]}
        begun = [found for found in watch.step(row) if found.name == ALARM and found.is_on]
        for found in begun:
            watch.admit(found)
        if begun and alarm is None:
            alarm = version + 1
        if collapsed_at(rewards) is not None:
            break
    return Course(rewards, effective, sampled, alarm)


def mean_reward(batch: Batch) -> float:
    return sum(each.reward for each in batch.sequences) / len(batch.sequences)


def read_rows() -> list[dict[str, Any]]:
    """The training rows of the recipe, made with its base model where they are not there yet."""
    recipe = load_recipe(RECIPE)
    prepare(recipe, RECIPE, [])
    with Path(str(recipe.data.train)).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--lag", type=int, default=Setting.lag)
    parser.add_argument("--rate", type=float, default=Setting.learning_rate)
    parser.add_argument("--steps", type=int, default=Setting.num_steps)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    ranks.start(threads=1, seed=0)
    rows = read_rows()
    print(
        "| seed | best reward | alarm at step | steps to the collapse | to that of new samples |", flush=True
    )
    print("|---|---|---|---|---|", flush=True)
    leads = []
    for seed in map(int, arguments.seeds.split(",")):
        setting = Setting(seed, arguments.lag, arguments.rate, arguments.steps)
        course = train(setting, rows)
        leads += course.leads()
        cells = [seed, f"{max(course.rewards):.2f}", course.alarm, *course.leads()]
        print(f"| {' | '.join('-' if cell is None else str(cell) for cell in cells)} |", flush=True)
        for name in ("rewards", "sampled", "effective"):
            print(f"  {name}: {' '.join(f'{value:.2f}' for value in getattr(course, name))}", flush=True)
    ranks.stop()
    return 0 if all(lead is not None and lead > 0 for lead in leads) else 1


if __name__ == "__main__":
    sys.exit(main())
