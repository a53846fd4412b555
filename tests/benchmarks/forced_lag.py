"""Training on batches of a known age, with one process in the place of the servers: for the ablations.

Each batch is sampled with the trainer's weights of one version (decoding.py), graded by the recipe's
verifier and learned from by the trainer's own step exactly `lag` versions later. So the age of the data is
the same on every machine, however busy, and the engines agree but for rounding. Queue, servers and transport
take no part.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from torch import Tensor

from asyncrl.algorithms.advantages import GroupRewards, find_advantage, group_advantages
from asyncrl.data.gym import gym_rows
from asyncrl.recipe import Recipe, Source
from asyncrl.records import Batch, ScoredSequence
from tests.benchmarks.decoding import TinyModel, sample
from verifiers.registry import build_verifier

if TYPE_CHECKING:
    from asyncrl.trainer.step.learner import Learner

Row = dict[str, Any]
Weights = Iterable[tuple[str, Tensor]]
"""By their names in a model folder."""


class Sampler:
    """Batches of one version of the policy, graded by the verifier of the rows."""

    def __init__(self, recipe: Recipe, rows: Sequence[Row], suppressed: Sequence[int]) -> None:
        self._recipe, self._rows, self._suppressed = recipe, rows, suppressed
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(recipe.model.path)
        self._config = transformers.AutoConfig.from_pretrained(recipe.model.path)
        self._verifier = build_verifier(rows[0]["verifier"], {})
        self._advantage = find_advantage(recipe.algorithm)

    def batch(self, weights: Weights, version: int, place: int) -> Batch:
        """The batch at `place` of the rows, of the policy `weights`, as sampled at `version`."""
        rollout = self._recipe.rollout
        first, size = place * rollout.groups_per_batch, rollout.samples_per_group
        rows = [self._rows[(first + i) % len(self._rows)] for i in range(rollout.groups_per_batch)]
        prompts = [self._tokenizer(row["prompt"])["input_ids"] for row in rows]
        responses = self._respond(weights, prompts, size, rollout.temperature)
        sequences = []
        for group, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            own = responses[group * size : (group + 1) * size]
            rewards = self._grade(row, own)
            lengths = [len(tokens) for tokens, _ in own]
            known = GroupRewards(rewards, lengths, min_size=self._recipe.algorithm.min_group_size())
            advantages = group_advantages(known, self._advantage, self._recipe.algorithm)
            sequences += [
                ScoredSequence(
                    sequence_id=f"{place}-{group}-{i}",
                    prompt_tokens=prompt,
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

    def accuracy(self, weights: Weights, rows: Sequence[Row], temperature: float) -> float:
        """Mean reward of one response to each of `rows`; temperature 0 is greedy."""
        prompts = [self._tokenizer(row["prompt"])["input_ids"] for row in rows]
        responses = self._respond(weights, prompts, 1, temperature)
        return sum(self._grade(row, [own])[0] for row, own in zip(rows, responses, strict=True)) / len(rows)

    def _respond(
        self, weights: Weights, prompts: list[list[int]], num_samples: int, temperature: float
    ) -> list[tuple[list[int], list[float]]]:
        return sample(
            TinyModel(self._config, weights),
            prompts,
            num_samples=num_samples,
            temperature=temperature,
            max_new_tokens=self._recipe.rollout.max_new_tokens,
            end=self._config.eos_token_id,
            suppressed=self._suppressed,
        )

    def _grade(self, row: Row, responses: list[tuple[list[int], list[float]]]) -> list[float]:
        reference = self._verifier.parse_reference(row["answer"])
        texts = [self._tokenizer.decode(tokens, skip_special_tokens=True) for tokens, _ in responses]
        return [float(self._verifier.verify(text, reference).score or 0.0) for text in texts]


@dataclass(frozen=True)
class Update:
    """The update from version - 1 to `version`."""

    version: int
    batch: Batch
    metrics: dict[str, float]
    sampled: Batch
    """The last batch that version - 1 sampled; at lag 0 `batch` itself."""


def train(
    learner: "Learner",
    sampler: Sampler,
    lag: int,
    num_updates: int,
    weights_of: Callable[["Learner", int], Weights] | None = None,
) -> Iterator[Update]:
    """The learner's updates; while the caller has one, the learner's weights are those of its version.

    The update from version s learns from the batch that version max(0, s - lag) sampled: at first the base
    model samples all that the staleness admits. `weights_of` a learner and its version sample, by default
    the learner's own.
    """
    waiting: deque[Batch] = deque()
    for version in range(num_updates):
        while len(waiting) <= lag:
            weights = (weights_of or own_weights)(learner, version)
            waiting.append(sampler.batch(weights, version, version + len(waiting)))
        sampled, batch = waiting[-1], waiting.popleft()
        metrics = learner.step(Batch(version, batch.temperature, batch.sequences))
        yield Update(version + 1, batch, metrics, sampled)


def own_weights(learner: "Learner", version: int) -> Weights:
    # Megatron may only be imported once a rank has started.
    from asyncrl.trainer.network.convert import export_weights

    return export_weights(learner.model)


def mean_reward(batch: Batch) -> float:
    return sum(each.reward for each in batch.sequences) / len(batch.sequences)


def read_rows(source: Source) -> list[Row]:
    """The rows of a recipe's source: a gym, or a JSON Lines file."""
    if source.gym is not None:
        return [dict(found.row) for found in gym_rows(source, "data")]
    with Path(str(source.path)).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
