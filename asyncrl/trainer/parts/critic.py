"""The critic of PPO: a second model that predicts at each token the reward still to come.

It starts as the base model, or as that at critic.path, in the policy's layout, with a value head of zeros in
place of the output layer, and has its own optimizer. Values, advantages and targets of a batch come from the
critic before the step; with critic.advantages_from the policy's advantages come from that after it. Gradients
are summed and divided as the policy's are, so packing and layout change nothing. Importance weights and
rejections are for the policy alone: a value is trained on whatever was sampled. Only the tokens that
rollout.mask_staleness and algorithm.masks_cut_off take out, and those without a log-prob, are left out of the
value loss, of its metrics and of the whitening.

Shapes: T response tokens of one micro-batch, H hidden size.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from asyncrl.algorithms.inputs import bounded_ratio
from asyncrl.algorithms.values import (
    chained,
    clipped_value_loss,
    continued,
    end_rewards,
    generalised_advantages,
    length_adaptive_lambda,
    v_trace,
)
from asyncrl.recipe import Recipe
from asyncrl.recipe.algorithm_terms import Gae
from asyncrl.recipe.terms import chosen
from asyncrl.records import CREDITS, Batch, Finish, PolicyVersion, ScoredSequence
from asyncrl.trainer.network.critic_model import build_critic
from asyncrl.trainer.network.model import DTYPES
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.columns import Column, TokenColumn
from asyncrl.trainer.step.batch_values import sum_over_ranks, whitened, with_advantages
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.optimizer import (
    data_parallel,
    divide_gradients,
    gather_weights,
    make_optimizer,
    set_learning_rate,
    take_step,
)
from asyncrl.trainer.step.optimizer_state import loss_scaler
from asyncrl.trainer.step.part import Saved, Step, StepPart

T = TypeVar("T")
SUMS = ("loss", "tokens", "value", "target", "target_squared", "error", "error_squared")


class Critic(StepPart):
    """The critic's weights and what it takes to train them on a batch. It steps before the policy."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._learner = learner
        self.warmup_batches = recipe.critic_warmup_batches()
        self.mini_batches = recipe.critic_mini_batches()
        self._num_recorded_batches = recipe.num_recorded_groups() // recipe.rollout.groups_per_batch
        self._algorithm = recipe.algorithm
        self._section, self._trainer = recipe.critic, recipe.trainer
        self._mask_staleness = recipe.rollout.mask_staleness
        dtype = DTYPES[recipe.model.dtype]
        self.model = build_critic(learner.shape, recipe, learner.layout)
        self._chunks = data_parallel(self.model, learner.layout, dtype)
        own = {"learning_rate": recipe.critic.learning_rate, "clip_grad_norm": recipe.critic_clip()}
        section = recipe.trainer.model_copy(update=own)
        self.optimizer = make_optimizer(self.model, self._chunks, section, dtype)
        self.schedule = recipe.critic_schedule()
        shape = dataclasses.replace(learner.shape, vocab_size=1)
        self._run = functools.partial(learner.passes.run, shape=shape)

    def claims(self, version: PolicyVersion) -> bool:
        """Responses of critic.warmup_run: the critic alone learns them."""
        return version < self._num_recorded_batches

    def learn(self, batch: Batch) -> dict[str, float]:
        parts = self._learner.pack(batch, self.mini_batches)
        return self.step(parts, batch.temperature, version=batch.taken_version)[1]

    def columns(self) -> list[Column]:
        return [TokenColumn(CREDITS)]

    def teaches(self, sequence: ScoredSequence) -> bool:
        # Each token has an advantage of its own.
        return True

    def advantages(self, step: Step) -> None:
        """Trains the critic, and puts its advantages into the batch; in a warm-up that is all of the step."""
        if not step.trains:
            return
        is_shared = self.mini_batches == self._learner.section.optimizer_steps_per_batch
        parts, columns = self.step(
            step.micro_batches(),
            step.batch.temperature,
            version=step.version,
            penalties=step.penalties,
            ratios=step.ratios,
            own=None if is_shared else self._learner.pack(step.batch, self.mini_batches),
        )
        step.replace(parts)
        # They are in the rewards that the advantages are of.
        step.penalties = None
        step.metrics |= columns
        step.is_over = step.version < self.warmup_batches

    def set_schedules(self, recipe: Recipe) -> None:
        self.schedule = recipe.critic_schedule()

    def saved(self) -> Iterator[Saved]:
        missing = (
            "no critic, which algorithm.advantage gae needs: the run was begun with another advantage. Set "
            "algorithm.advantage back, or run_folder to a new folder."
        )
        yield Saved("critic.", self.model, self.optimizer, missing)

    def before_saving(self) -> None:
        gather_weights(self._chunks)

    def step(
        self,
        parts: list[list[MicroBatch]],
        temperature: float,
        *,
        version: PolicyVersion,
        penalties: list[list[Tensor]] | None = None,
        ratios: list[list[Tensor]] | None = None,
        own: list[list[MicroBatch]] | None = None,
    ) -> tuple[list[list[MicroBatch]], dict[str, float]]:
        """Trains on each part, one optimizer step in each pass; parts with advantages per token, and metrics.

        `own` are the critic's parts of the same batch, where it takes another number of mini-batches than the
        policy; they go without `penalties` and `ratios`.

        The micro-batches' advantages are rewards when they come. `penalties` [T] are taken from the tokens'
        rewards; `ratios` [T], of the policy before the step to those that sampled, are v_trace's. Only the
        last pipeline stage, which computes losses, gets advantages. Raises
        Diverged when a gradient is not finite.
        """

        def of_now() -> list[list[Tensor]]:
            return [
                self.current_advantages(part, temperature, _at(penalties, i), _at(ratios, i))
                for i, part in enumerate(parts)
            ]

        is_after = self._section.advantages_from == "after"
        before = of_now() if own and not is_after else None
        of_trained, metrics = self._train(own or parts, temperature, version, penalties, ratios)
        found = of_now() if is_after else before or of_trained
        if self._algorithm.is_whitened():
            found = whitened(found, parts, self._algorithm, mask_staleness=self._mask_staleness)
        return with_advantages(parts, found), metrics

    def _train(
        self,
        parts: list[list[MicroBatch]],
        temperature: float,
        version: PolicyVersion,
        penalties: list[list[Tensor]] | None,
        ratios: list[list[Tensor]] | None,
    ) -> tuple[list[list[Tensor]], dict[str, float]]:
        """All passes over the parts: advantages by the critic before them, and metrics."""
        passes = self._section.passes
        # The first optimizer step sees the critic before the batch; the others need its values from then.
        before: list[list[Tensor] | None] = [self.values(part, temperature) for part in parts[1:]]
        before.insert(0, None if passes == 1 else self.values(parts[0], temperature))
        found, sums, norms, rate, num_skipped = [], [], list[float](), 0.0, 0
        for i in range(passes * len(parts)):
            at = i % len(parts)
            advantages, total = self.accumulate(
                parts[at],
                temperature,
                before=before[at],
                penalties=_at(penalties, at),
                ratios=_at(ratios, at),
            )
            if i == at:
                found.append(advantages)
            sums.append(total)
            if total[SUMS.index("tokens")] > 0:
                schedule, loss = self.schedule, total[SUMS.index("loss")].item()
                own_rate = schedule.rate(version, i)
                set_learning_rate(self.optimizer, own_rate, self._trainer, muon_share=schedule.muon_share)
                norm = take_step(
                    self.optimizer, "critic.learning_rate", schedule.peak, version=version, loss=loss
                )
                if norm is None:
                    num_skipped += 1
                else:
                    rate = own_rate
                    norms.append(norm)
        metrics = value_metrics(torch.stack(sums).sum(0))
        metrics["critic_grad_norm"] = sum(norms) / len(norms) if norms else 0.0
        metrics["critic_learning_rate"] = rate
        if (scaler := loss_scaler(self.optimizer)) is not None:
            metrics["critic_loss_scale"] = scaler.value()
            metrics["critic_skipped_steps"] = float(num_skipped)
        return found, metrics

    def accumulate(
        self,
        micro_batches: list[MicroBatch],
        temperature: float,
        *,
        before: list[Tensor] | None = None,
        penalties: list[Tensor] | None = None,
        ratios: list[Tensor] | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """Leaves the gradient of the value loss over all ranks' micro-batches in the buffers; per micro-batch
        the advantages [T], and the sums [len(SUMS)] over all ranks. Without `before` the values are those of
        now."""
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

        def loss(index: int, micro: MicroBatch, values: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            known = before[index] if before else values.detach()
            advantages, targets = self._estimates(micro, known, _at(penalties, index), _at(ratios, index))
            # The tokens that the policy's loss counts.
            mask = micro.counted(self._mask_staleness)
            losses = clipped_value_loss(values, known, targets, self._section.value_clip)
            total = torch.where(mask, losses, 0.0).sum()
            sums = _micro_batch_sums(total, known[mask].double(), targets[mask].double())
            return total, (advantages, sums)

        found = self._run(self._chunks, micro_batches, temperature, loss, forward_only=False)
        total = sum_over_ranks([sums for _, sums in found], len(SUMS))
        divide_gradients(self._chunks, total[SUMS.index("tokens")])
        return [advantages for advantages, _ in found], total

    def _estimates(
        self, micro: MicroBatch, values: Tensor, penalties: Tensor | None = None, ratios: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Advantages and the values' targets [T], from the values before the step and from rewards: the
        outcome's, which a micro-batch has as advantages, at the last token, those inside a sequence at their
        tokens."""
        rewards = end_rewards(micro.advantages, micro.line_ids)
        if CREDITS in micro.columns:
            rewards = rewards + micro.columns[CREDITS]
        if penalties is not None:
            rewards = rewards - penalties
        gae, ids = chosen(self._algorithm.advantage, Gae), micro.line_ids
        gamma = gae.gamma
        if self._section.cut_off == "continued":
            cut = torch.tensor([finish == Finish.LENGTH for finish in micro.finishes], device=values.device)
            rewards = continued(rewards, values, ids, cut[micro.sequence_ids], gamma=gamma)
        own_lambda = gae.gae_lambda if self._section.gae_lambda is None else self._section.gae_lambda
        if self._section.targets == "v_trace":
            assert ratios is not None, "v_trace needs importance ratios"
            cap = self._section.v_trace_cap
            targets, advantages = v_trace(
                rewards, values, ratios, ids, gamma=gamma, gae_lambda=own_lambda, cap=cap
            )
            return self._in_branches(micro, advantages, own_lambda), targets
        of_policy: float | Tensor = gae.gae_lambda
        if gae.length_alpha is not None:
            of_policy = length_adaptive_lambda(micro.sequence_ids, gae.length_alpha)
        advantages = generalised_advantages(rewards, values, ids, gamma=gamma, gae_lambda=of_policy)
        if gae.length_alpha is None and own_lambda == gae.gae_lambda:
            return self._in_branches(micro, advantages, of_policy), advantages + values
        of_critic = generalised_advantages(rewards, values, ids, gamma=gamma, gae_lambda=own_lambda)
        return self._in_branches(micro, advantages, of_policy), of_critic + values

    def _in_branches(self, micro: MicroBatch, advantages: Tensor, gae_lambda: float | Tensor) -> Tensor:
        """[T] the policy's advantages, from those of each branch by itself."""
        gae = chosen(self._algorithm.advantage, Gae)
        if gae.branches == "outcome":
            return advantages
        return chained(advantages, micro.line_ids, micro.sequence_ids, gamma=gae.gamma, gae_lambda=gae_lambda)

    def current_advantages(
        self,
        micro_batches: list[MicroBatch],
        temperature: float,
        penalties: list[Tensor] | None = None,
        ratios: list[Tensor] | None = None,
    ) -> list[Tensor]:
        """[T] of each micro-batch by the values of now; empty on all pipeline stages but the last."""

        def keep(index: int, micro: MicroBatch, values: Tensor) -> tuple[Tensor, Tensor]:
            found = self._estimates(micro, values, _at(penalties, index), _at(ratios, index))
            return values.sum(), found[0]

        with torch.no_grad():
            return self._run(self._chunks, micro_batches, temperature, keep, forward_only=True)

    def values(self, micro_batches: list[MicroBatch], temperature: float) -> list[Tensor]:
        """[T] of each micro-batch, without gradient; empty on all pipeline stages but the last."""

        def keep(index: int, micro: MicroBatch, values: Tensor) -> tuple[Tensor, Tensor]:
            return values.sum(), values

        with torch.no_grad():
            return self._run(self._chunks, micro_batches, temperature, keep, forward_only=True)


def _at(given: Sequence[T] | None, index: int) -> T | None:
    return given[index] if given else None


def _micro_batch_sums(total: Tensor, values: Tensor, targets: Tensor) -> Tensor:
    """[len(SUMS)] float64, over the tokens that count."""
    errors = targets - values
    parts = (values, targets, targets.square(), errors, errors.square())
    count = values.new_tensor(len(values))
    return torch.stack([total.detach().double(), count, *(part.sum() for part in parts)])


def value_metrics(sums: Tensor) -> dict[str, float]:
    """Means over the tokens of a step, of the values before it."""
    total = dict(zip(SUMS, sums.tolist(), strict=True))
    tokens = total["tokens"]
    if not tokens:
        return dict.fromkeys(
            ("value_loss", "value_mean", "value_target_mean", "explained_variance"), math.nan
        )
    spread = total["target_squared"] / tokens - (total["target"] / tokens) ** 2
    unexplained = total["error_squared"] / tokens - (total["error"] / tokens) ** 2
    return {
        "value_loss": total["loss"] / tokens,
        "value_mean": total["value"] / tokens,
        "value_target_mean": total["target"] / tokens,
        # 1 for a critic that knows every target up to a constant, 0 for one that knows nothing, or less.
        "explained_variance": 1 - unexplained / spread if spread > 1e-12 else math.nan,
    }


class VTrace(StepPart):
    """Importance ratios of the policy before the step, for the critic's targets."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        pass

    def evaluate(self, step: Step) -> None:
        evaluated = step.policy_logprobs()
        step.ratios = [
            importance_ratios(mini.micro_batches, [logprobs for logprobs, _ in found])
            for mini, found in zip(step.mini_batches, evaluated, strict=True)
        ]


def importance_ratios(part: Sequence[MicroBatch], proximals: Sequence[Tensor]) -> list[Tensor]:
    """[T] of each micro-batch: the policy before the step over those that sampled, 1 where these told no
    number. Empty without proximal log-probs, on all pipeline stages but the last."""
    found = zip(part, proximals, strict=True) if proximals else ()
    return [
        bounded_ratio(proximal, torch.where(behavior.isfinite(), behavior, proximal))
        for micro, proximal in found
        for behavior in (micro.behavior.to(proximal.device),)
    ]
