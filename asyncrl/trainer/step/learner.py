"""One rank's model, optimizer and schedule: makes version v + 1 out of version v and a batch.

Owns the weights. Knows no queue, no server, and no file but the base model. Gradients are summed over
micro-batches and ranks, then divided once by the global denominator: neither packing nor the number and
layout of the ranks changes a step. Every rank of the last pipeline stage computes its micro-batches' whole
loss; of those that share a model, the first counts it. PPO's critic, if any, steps before the policy.
"""

import contextlib
import dataclasses
import functools
import math
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from asyncrl.algorithms.own_terms import GradientWatch
from asyncrl.errors import Diverged
from asyncrl.model.dtype import with_dtype
from asyncrl.model.layout import make_layout
from asyncrl.model.routes import replayed_row_bytes
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import is_of_hub, model_folder
from asyncrl.model.unsampled import Unsampled, find_unsampled
from asyncrl.recipe import Recipe
from asyncrl.records import Batch, PolicyVersion, root_id
from asyncrl.trainer.network.adapters import load_adapted
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import DTYPES, build_policy, device, rank_heads
from asyncrl.trainer.network.reference import make_reference
from asyncrl.trainer.network.routing_replay import RoutingReplay, record_routes, unrouted
from asyncrl.trainer.packing.attention_kernels import BITWISE, find_kernel
from asyncrl.trainer.packing.batch import (
    MicroBatch,
    check_kept,
    check_routes,
    check_sampled,
    mini_batches,
    rank_micro_batches,
)
from asyncrl.trainer.packing.taught import check_taught
from asyncrl.trainer.step.critic import CriticLearner, build_critic
from asyncrl.trainer.step.diagnostics import MAXIMA, NUM_SUMS, TOTALS, Tally
from asyncrl.trainer.step.entropy_target import EntropyTarget
from asyncrl.trainer.step.expert_loads import ExpertLoads
from asyncrl.trainer.step.judgments import Judgments
from asyncrl.trainer.step.loss_scale import loss_scaler
from asyncrl.trainer.step.objective import LossRecord, importance_ratios, kl_penalties
from asyncrl.trainer.step.objectives import make_objective
from asyncrl.trainer.step.optimizer import (
    data_parallel,
    divide_gradients,
    gather_weights,
    make_optimizer,
    set_learning_rate,
    take_step,
)
from asyncrl.trainer.step.optimizer_state import reset_state
from asyncrl.trainer.step.own_faults import explain_divergence, raise_first
from asyncrl.trainer.step.passes import LossOf, Passes, Result
from asyncrl.trainer.step.past_versions import PastVersions
from asyncrl.trainer.step.spikes import SpikeWatch
from asyncrl.trainer.step.token_advantages import with_kl_reward, with_teacher
from asyncrl.trainer.step.token_record import TokenRecord
from asyncrl.trainer.step.totals import max_over_ranks, sum_over_ranks


class Learner:
    """The weights of one version and what it takes to make the next."""

    def __init__(self, shape: ModelShape, recipe: Recipe, unsampled: Unsampled | None = None) -> None:
        """`unsampled` are the tokens that the servers never sample, by default those of the model folder."""
        recipe = recipe.model_copy(update={"model": with_dtype(recipe, shape)})
        self.shape = shape
        self._base = model_folder(recipe.model)
        self.base_name = recipe.model.path if is_of_hub(recipe.model) else str(self._base)
        if recipe.learns_from_rows():
            # Rows may hold any token, and nothing masked the logits of what wrote them.
            unsampled = Unsampled()
        elif unsampled is None:
            unsampled = find_unsampled(self._base, recipe.rollout.stop_tokens)
        self.unsampled = unsampled
        self.algorithm = recipe.algorithm
        self.section = recipe.trainer
        self._seed = recipe.seed
        self._mask_staleness = recipe.rollout.mask_staleness
        self._num_recorded_batches = recipe.num_recorded_groups() // recipe.rollout.groups_per_batch
        self._is_truncated = recipe.rollout.is_truncated()
        self._row_bytes = replayed_row_bytes(recipe, shape)
        self._teacher = recipe.teacher
        self.objective = make_objective(recipe)
        dtype = DTYPES[recipe.model.dtype]
        self.layout = make_layout(recipe)
        self._device = device()
        heads = rank_heads(shape, self.layout, dtype)
        is_bitwise = recipe.model.bitwise_agreement
        self.kernel = BITWISE if is_bitwise else find_kernel(recipe.trainer.attention, self._device, heads)
        self.model = build_policy(
            shape,
            dtype,
            self.layout,
            recompute=recipe.trainer.recompute,
            unsampled=unsampled,
            float32_logits=recipe.model.float32_logits,
            is_bitwise=is_bitwise,
            lora=recipe.model.lora,
            has_frozen_routers=recipe.trainer.router.frozen,
        )
        self.base_digest: str | None = None
        """Digest of the base model that adapters belong to, once it is loaded."""
        self.parallel_chunks = data_parallel(self.model, self.layout, dtype)
        self.optimizer = make_optimizer(self.model, self.parallel_chunks, recipe.trainer, dtype)
        self.schedule = recipe.policy_schedule()
        self.entropy = EntropyTarget(recipe.algorithm)
        self.spikes = SpikeWatch(self.model, self.parallel_chunks)
        self.loads = (
            ExpertLoads(shape, self.model, bias_update_rate=recipe.trainer.router.bias_update_rate)
            if shape.num_experts is not None
            else None
        )
        self.reference = (
            make_reference(shape, recipe.model, self.layout, unsampled, self.model, self.parallel_chunks)
            if self.objective.needs_reference()
            else None
        )
        self.passes = Passes(
            shape,
            recipe.trainer,
            dtype=dtype,
            device=self._device,
            has_adapters=self.model.lora is not None,
        )
        self.critic = self._make_critic(recipe) if recipe.algorithm.needs_critic() else None
        self.past = self._make_past(recipe) if recipe.trainer.splits_staleness else None
        self.routing: RoutingReplay | None = None
        if self.algorithm.routing_replay != "none":
            self.routing = RoutingReplay(self.model, *([self.past.model] if self.past is not None else []))
        self._gradients: GradientWatch | None = None

    def _make_critic(self, recipe: Recipe) -> CriticLearner:
        """The critic as it starts, with an optimizer and a schedule of its own."""
        dtype = DTYPES[recipe.model.dtype]
        section = recipe.trainer.model_copy(update={"learning_rate": recipe.critic.learning_rate})
        model = build_critic(self.shape, recipe, self.layout)
        chunks = data_parallel(model, self.layout, dtype)
        optimizer = make_optimizer(model, chunks, section, dtype)
        run = functools.partial(self.passes.run, shape=dataclasses.replace(self.shape, vocab_size=1))
        return CriticLearner(recipe, model, chunks, optimizer, run)

    def _make_past(self, recipe: Recipe) -> PastVersions:
        return PastVersions(
            self.shape,
            recipe.model,
            self.layout,
            self.unsampled,
            num_kept=recipe.rollout.max_staleness,
            kernel=self.kernel,
        )

    def set_schedules(self, recipe: Recipe) -> None:
        """The learning rates of later steps are those of `recipe`."""
        self.schedule = recipe.policy_schedule()
        if self.critic is not None:
            self.critic.schedule = recipe.critic_schedule()

    def load_base(self) -> None:
        """Version 0: the policy becomes the base model, as critic and reference are from the start."""
        if self.model.lora is None:
            load_weights(self.model, open_weights(self._base))
        else:
            self.base_digest = load_adapted(self.model, open_weights(self._base), self._seed)
        self.weights_changed()

    def weights_changed(self) -> None:
        """Call it after writing into the model's weights: updates the optimizer's float32 copies, if any."""
        self.optimizer.reload_model_params()

    def free_cached_memory(self) -> None:
        """Gives back what the allocator keeps of passes that are over, for the servers on the same GPU.
        Weights, gradients and optimizer stay."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def step(self, batch: Batch, record: TokenRecord | None = None) -> dict[str, float]:
        """One version: one optimizer step per mini-batch; its metrics.

        A mini-batch that no token of survives takes none: no momentum, no weight decay. Nor does one whose
        gradient overflows float16. The version counts all the same, as its batch is used up, and so does its
        step of the learning rate's schedule. `record` is told of every token that the policy's loss sees.
        Raises Diverged when a gradient is not finite, InputError when a term of the recipe's own breaks its
        contract or a response has a token that is never sampled, or lacks the kept sets of its tokens or
        the experts that they took.
        """
        check_sampled(batch, self.unsampled)
        if batch.taken_version < self._num_recorded_batches:
            return self._learn_recorded(batch)
        check_kept(batch, is_truncated=self._is_truncated)
        check_routes(batch, row_bytes=self._row_bytes)
        check_taught(batch, self._teacher, self.unsampled, self.shape.vocab_size)
        values = self._refresh(batch.taken_version)
        self.objective.entropy_coefficient = self.entropy.coefficient()
        batch = self.objective.finished(batch)
        parts = self._parts(batch, self.section.optimizer_steps_per_batch)
        if self.algorithm.routing_replay == "proximal":
            record_routes(parts[1:])
        tally, norms, num_skipped = Tally(), list[float](), 0
        proximals: list[list[Tensor] | None] = [None] * len(parts)
        penalties = ratios = sampled = None
        if self.past is not None:
            sampled = self.past.logprobs(parts, batch, self.passes)
            self.past.keep(batch.taken_version, self.model)
        has_v_trace = self.critic is not None and self.critic.needs_ratios()
        if self.algorithm.has_kl_reward() or has_v_trace:
            evaluated = [
                self.passes.both_logprobs(self.parallel_chunks, part, batch.temperature) for part in parts
            ]
            kept = [[found for found, _ in part] for part in evaluated]
            if not self.objective.is_interpolated():
                proximals = list(kept)
            if self.algorithm.has_kl_reward():
                wholes = [[whole for _, whole in part] for part in evaluated]
                penalties = self._kl_penalties(parts, wholes, batch.temperature)
            if has_v_trace:
                ratios = [importance_ratios(part, found) for part, found in zip(parts, kept, strict=True)]
        if self.critic is not None:
            steps = self.critic.optimizer_steps_per_batch
            own = None if steps == self.section.optimizer_steps_per_batch else self._parts(batch, steps)
            parts, of_critic = self.critic.step(
                parts,
                batch.temperature,
                version=batch.taken_version,
                penalties=penalties,
                ratios=ratios,
                own=own,
            )
            values |= of_critic
            if batch.taken_version < self.critic.warmup_batches:
                return self._measure(parts, batch, record, sampled) | values | self._of_routing()
        elif penalties is not None:
            parts = with_kl_reward(
                parts,
                penalties,
                self.algorithm,
                names=list(dict.fromkeys(root_id(one.sequence_id) for one in batch.sequences)),
                mask_staleness=self._mask_staleness,
            )
        parts = with_teacher(parts, self._teacher.coefficient)
        # The first mini-batch sees the policy before the step; the others need its log-probs from then.
        for i, part in enumerate(parts):
            if i and proximals[i] is None and not self.objective.is_interpolated():
                proximals[i] = self.passes.logprobs(self.parallel_chunks, part, batch.temperature)
        num_survivors = 0.0
        rate, scale = 0.0, 0.0
        for i, (micro_batches, known) in enumerate(zip(parts, proximals, strict=True)):
            metrics = self.accumulate(
                micro_batches,
                batch.temperature,
                proximals=known,
                sampled=sampled[i] if sampled else None,
                tally=tally,
                record=record,
                version=batch.taken_version,
            )
            if self.loads is not None:
                self.loads.collect()
            if metrics["surviving_tokens"] > num_survivors:
                own_scale = self._rate_scale(tally)
                own_rate = own_scale * self.schedule.rate(batch.taken_version, i)
                set_learning_rate(self.optimizer, own_rate, self.section, muon_share=self.schedule.muon_share)
                norm = self._take_step(batch.taken_version, metrics["loss"])
                if norm is None:
                    num_skipped += 1
                else:
                    rate, scale = own_rate, own_scale
                    norms.append(norm)
                    self.spikes.look(norm)
                    if self.loads is not None:
                        self.loads.update_biases()
            num_survivors = metrics["surviving_tokens"]
        gather_weights(self.parallel_chunks)
        metrics["optimizer_steps"] = float(len(norms))
        metrics["grad_norm"] = sum(norms) / len(norms) if norms else 0.0
        metrics["learning_rate"] = rate
        if (scaler := loss_scaler(self.optimizer)) is not None:
            metrics["loss_scale"] = scaler.value()
            metrics["skipped_steps"] = float(num_skipped)
        if self.section.learning_rate_scaling != "none":
            metrics["learning_rate_scale"] = scale
        if self.algorithm.entropy_target is not None:
            metrics["entropy_coefficient"] = self.objective.entropy_coefficient
            self.entropy.saw(metrics["entropy"])
        if self.loads is not None:
            metrics |= self.loads.metrics()
        return self.objective.reported(metrics | values | self._of_routing())

    def _of_routing(self) -> dict[str, float]:
        return {} if self.routing is None else self.routing.take_metrics()

    def _learn_recorded(self, batch: Batch) -> dict[str, float]:
        """A step on responses of `critic.warmup_run`. The critic alone learns them, and nothing compares them
        with this policy, which has not sampled them."""
        assert self.critic is not None
        batch = self.objective.finished(batch)
        if self.past is not None:
            # Tokens that are generated by the end of the warm-up are of its versions.
            self.past.keep(batch.taken_version, self.model)
        parts = self._parts(batch, self.critic.optimizer_steps_per_batch)
        _, values = self.critic.step(parts, batch.temperature, version=batch.taken_version)
        num_tokens = sum(one.num_sampled() for one in batch.sequences)
        of_policy = {"loss": math.nan, "grad_norm": math.nan, "learning_rate": 0.0}
        return of_policy | {"num_tokens": float(num_tokens)} | values

    def _rate_scale(self, tally: Tally) -> float:
        """Factor on the learning rate of the optimizer step that `tally` has last; the same on every rank.

        sqrt(ESS / N): VCPO, Huang et al. 2026 (arXiv 2602.17616). On-policy all N weights are 1, and so is
        the factor. The square root is how Adam's rate follows a batch size.
        """
        if self.section.learning_rate_scaling == "none":
            return 1.0
        return math.sqrt(tally.latest_effective_share())

    def _refresh(self, version: PolicyVersion) -> dict[str, float]:
        """Makes `version` the reference where it is due; the version of the reference, as a metric.

        Before the step, not behind the last: so a checkpoint needs no word on whether it was done.
        """
        every = self.algorithm.reference_refresh_steps
        if not every or self.reference is None:
            return {}
        if version and version % every == 0:
            self.reference.copy_from(self.model)
            if self.algorithm.refresh_resets_optimizer:
                reset_state(self.optimizer)
        return {"reference_version": float(version - version % every)}

    def _take_step(self, version: PolicyVersion, loss: float) -> float | None:
        """An optimizer step; the gradient's norm, None where it was skipped. Raises Diverged, or InputError
        where an own surrogate made a gradient that is not finite."""
        own = self._gradients.found if self._gradients else []
        key, peak = "trainer.learning_rate", self.schedule.peak
        try:
            norm = take_step(self.optimizer, key, peak, version=version, loss=loss)
        except Diverged as error:
            explain_divergence(error, self.algorithm, own)
            raise
        if norm is None and self._gradients:
            # What an own term did is no matter of the loss scale.
            raise_first(own)
        return norm

    def _parts(self, batch: Batch, steps: int) -> list[list[MicroBatch]]:
        """This rank's micro-batches, by optimizer step."""
        return [
            rank_micro_batches(
                part,
                budget_tokens=self.section.tokens_per_micro_batch,
                rank=parallel_state.get_data_parallel_rank(),
                num_ranks=parallel_state.get_data_parallel_world_size(),
                layout=self.layout,
                kernel=self.kernel,
                teaches=self.objective.teaches,
                lengths=self.objective.prompt_lengths(part),
                imitation=self.objective.imitation(part),
            )
            for part in mini_batches(batch, steps, seed=self._seed, order=self.section.mini_batch_order)
        ]

    def _kl_penalties(
        self, parts: list[list[MicroBatch]], proximals: list[list[Tensor]], temperature: float
    ) -> list[list[Tensor]]:
        """[T] of each micro-batch: what KL takes from the tokens' rewards."""
        penalties = []
        for part, known in zip(parts, proximals, strict=True):
            references = self._reference_logprobs(part, temperature)
            # Empty on all stages but the last.
            found = zip(part, known, references, strict=True) if known else ()
            penalties.append(
                [
                    kl_penalties(micro, p, r, self.algorithm, mask_staleness=self._mask_staleness)
                    for micro, p, r in found
                ]
            )
        return penalties

    def measure(self, batch: Batch) -> dict[str, float]:
        """The metrics of the loss on a batch, in one pass that leaves the policy as it is."""
        batch = self.objective.finished(batch)
        parts = with_teacher(self._parts(batch, 1), self._teacher.coefficient)
        return self.objective.reported(self._measure(parts, batch, None, None))

    def _reference_logprobs(self, micro_batches: list[MicroBatch], temperature: float) -> list[Tensor]:
        assert self.reference is not None
        with self.reference.active():
            # A policy with adapters is its own reference, and the reference routes for itself.
            return self.passes.whole_logprobs(self.reference.chunks, unrouted(micro_batches), temperature)

    def _measure(
        self,
        parts: list[list[MicroBatch]],
        batch: Batch,
        record: TokenRecord | None,
        sampled: list[list[Tensor]] | None,
    ) -> dict[str, float]:
        """The metrics of a step that leaves the policy as it is: there is no gradient, so no norm."""
        tally = Tally()
        for i, micro_batches in enumerate(parts):
            metrics = self.accumulate(
                micro_batches,
                batch.temperature,
                sampled=sampled[i] if sampled else None,
                tally=tally,
                forward_only=True,
                record=record,
                version=batch.taken_version,
            )
        return metrics | {"grad_norm": math.nan, "learning_rate": 0.0}

    def accumulate(
        self,
        micro_batches: list[MicroBatch],
        temperature: float,
        *,
        proximals: list[Tensor] | None = None,
        sampled: list[Tensor] | None = None,
        tally: Tally | None = None,
        forward_only: bool = False,
        record: TokenRecord | None = None,
        version: PolicyVersion = 0,
    ) -> dict[str, float]:
        """Leaves the gradient of the loss over all ranks' micro-batches in the buffers; returns its metrics.

        The metrics include what `tally` already holds. Without `proximals` the current policy is the proximal
        one. `forward_only` gives the metrics without a gradient, as micro-batches that do not teach always
        are: they count in metrics and denominator. `version` is what the batch is trained from: it seeds
        what is drawn.
        """
        references = None
        if self.reference is not None and not self.algorithm.has_kl_reward():
            evaluate = functools.partial(self._reference_logprobs, micro_batches, temperature)
            references = self.objective.references(micro_batches, evaluate)
        proximals, judgments = self._judge(micro_batches, temperature, proximals, version)
        for chunk in self.parallel_chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        has_own = self.algorithm.has_own_loss_terms()
        self._gradients = GradientWatch() if has_own else None

        def loss(index: int, micro: MicroBatch, outputs: tuple[Tensor, ...]) -> tuple[Tensor, LossRecord]:
            proximal = proximals[index] if proximals else None
            if record is not None:
                record.note(micro_batches[index], outputs, proximal)
            return self.objective(
                micro,
                outputs,
                proximal=proximal,
                reference=references[index] if references else None,
                sampled=sampled[index] if sampled else None,
                judged=judgments.of(index),
                gradients=self._gradients,
            )

        num_taught = 0 if forward_only else sum(micro.teaches for micro in micro_batches)
        # A pass that leaves the policy as it is counts no loads.
        watch = contextlib.nullcontext() if self.loads is None or forward_only else self.loads.counting()
        with watch:
            found = self._teach(micro_batches, num_taught, temperature, loss)
        total = sum_over_ranks([kept.sums for _, kept in found], NUM_SUMS)
        largest = max_over_ranks([kept.maxima for _, kept in found], len(MAXIMA))
        tally = tally or Tally()
        tally.add(total, largest)
        if has_own and tally.num_faults():
            raise_first([(fault, micro.names) for micro, kept in found for fault in kept.faults])
        if num_taught:
            divide_gradients(self.parallel_chunks, total[TOTALS.index("denominator")])
        return tally.metrics()

    def _judge(
        self,
        micro_batches: list[MicroBatch],
        temperature: float,
        proximals: list[Tensor] | None,
        version: PolicyVersion,
    ) -> tuple[list[Tensor] | None, Judgments]:
        """The proximal log-probs, if they are known by then, and what is judged over the whole optimizer
        step; at most one forward pass."""
        entropies: list[Tensor] = []
        if self.objective.needs_entropies():
            evaluated = self.passes.with_entropies(self.parallel_chunks, micro_batches, temperature)
            entropies = [found for _, found in evaluated]
            proximals = [found for found, _ in evaluated] if proximals is None else proximals
        elif not self.objective.needs_proximal():
            return proximals, Judgments()
        elif proximals is None:
            proximals = self.passes.logprobs(self.parallel_chunks, micro_batches, temperature)
        draw = f"{self._seed}:{version}"
        return proximals, self.objective.judge(micro_batches, proximals, entropies, draw=draw)

    def _teach(
        self, micro_batches: list[MicroBatch], num_taught: int, temperature: float, loss: LossOf[Result]
    ) -> list[tuple[MicroBatch, Result]]:
        """Each micro-batch with what `loss` keeps of it, and the gradient of the first `num_taught`."""

        def measure(index: int, micro: MicroBatch, outputs: Any) -> tuple[Tensor, Result]:
            return loss(num_taught + index, micro, outputs)

        taught, silent = micro_batches[:num_taught], micro_batches[num_taught:]
        kept: list[Result] = []
        if silent:
            with torch.no_grad():
                kept = self.passes.run(self.parallel_chunks, silent, temperature, measure, forward_only=True)
        if taught:
            kept += self.passes.run(self.parallel_chunks, taught, temperature, loss, forward_only=False)
        # Nothing is kept on all pipeline stages but the last.
        return list(zip([*silent, *taught], kept, strict=True)) if kept else []
