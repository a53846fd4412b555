"""Parts that set a number of the step by what was measured: entropy target, rate scaling, loss scale, router
biases.

A token counts for an expert once for each response token that it predicts: however a batch is packed and
divided among ranks, the loads are the same. Prompts, which some micro-batches share and others repeat, and
padding do not count.

Shapes: L layers, E experts, P packed tokens, C of them where a router computes.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe
from asyncrl.trainer.network.experts import UPDATED, routers
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.context_parallel import own_tokens
from asyncrl.trainer.step.diagnostics import Tally
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.optimizer_state import loss_scaler
from asyncrl.trainer.step.part import MiniBatch, Step, StepPart


class EntropyState(TypedDict):
    """State between two steps."""

    coefficient: float
    is_low: bool
    """Whether the last step's entropy was at most the target."""


class EntropyTarget(StepPart):
    """The coefficient of the entropy bonus, led by the entropy of each step to a target.

    After a step of entropy H the coefficient c becomes c + delta where H <= target and c - delta above it,
    within [0, most]; the next step's bonus is c where H <= target, and 0 above it (Skywork-OR1, He et al.
    2025, arXiv 2505.22312; TRL's use_adaptive_entropy). H is the mean over the tokens that count of all
    ranks, as the metric. The state is in the checkpoint: the next step's bonus is a function of it alone.
    """

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._learner = learner
        self._section = recipe.algorithm.entropy_bonus
        # Before the first step no entropy is known: the bonus holds.
        self.entropy = EntropyState(coefficient=recipe.algorithm.entropy_bonus.coefficient, is_low=True)

    def prepare(self, step: Step) -> None:
        self._learner.objective.entropy_coefficient = self.coefficient()

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        self.saw(metrics["entropy"])
        return {"entropy_coefficient": self._learner.objective.entropy_coefficient}

    def coefficient(self) -> float:
        """Weight of the bonus in the next step."""
        return self.entropy["coefficient"] if self.entropy["is_low"] else 0.0

    def saw(self, entropy: float) -> None:
        """A step of this entropy is over; NaN, of a step without tokens, changes nothing."""
        section, target = self._section, self._section.target
        assert target is not None
        if math.isnan(entropy):
            return
        is_low = entropy <= target
        moved = self.entropy["coefficient"] + (section.step if is_low else -section.step)
        kept = min(max(moved, 0.0), section.max_coefficient)
        self.entropy = EntropyState(coefficient=kept, is_low=is_low)

    def state(self) -> dict[str, Any]:
        return {"entropy": self.entropy}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.entropy = state.get("entropy", self.entropy)


class RateScaling(StepPart):
    """The learning rate of each optimizer step times sqrt(ESS / N).

    VCPO, Huang et al. 2026 (arXiv 2602.17616). On-policy all N weights are 1, and so is the factor. The
    square root is how Adam's rate follows a batch size.
    """

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._latest = self._taken = 0.0

    def prepare(self, step: Step) -> None:
        self._taken = 0.0

    def rate_factor(self, tally: Tally) -> float:
        self._latest = math.sqrt(tally.latest_effective_share())
        return self._latest

    def stepped(self, norm: float | None) -> None:
        if norm is not None:
            self._taken = self._latest

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {"learning_rate_scale": self._taken}


class LossScale(StepPart):
    """Columns of the optimizer's loss scale, which a model in float16 has."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._optimizer = learner.optimizer
        self._num_skipped = 0

    def prepare(self, step: Step) -> None:
        self._num_skipped = 0

    def stepped(self, norm: float | None) -> None:
        self._num_skipped += norm is None

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        scaler = loss_scaler(self._optimizer)
        assert scaler is not None
        return {"loss_scale": scaler.value(), "skipped_steps": float(self._num_skipped)}


class ExpertLoads(StepPart):
    """Counts what the policy's routers choose, and moves their biases by trainer.router.bias_update_rate."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        shape, policy = learner.shape, learner.model
        assert shape.num_experts is not None
        self._shape = shape
        self._rate = recipe.trainer.router.bias_update_rate
        self._routers = {router.layer_number - 1: router for _, router in routers(policy)}
        self._divides_tokens = policy.config.sequence_parallel
        device = next(policy.parameters()).device
        self._own = torch.zeros(shape.num_layers, shape.num_experts, dtype=torch.float64, device=device)
        self._latest, self._all = self._own.clone(), self._own.clone()
        self._is_counting = False
        self._counts: Tensor | None = None
        for chunk in policy:
            chunk.register_forward_pre_hook(self._begin)
            chunk.register_forward_hook(self._end)
        for layer, router in self._routers.items():
            router.register_forward_hook(self._counter(layer))
            if self._rate:
                setattr(router.expert_bias, UPDATED, True)

    @contextlib.contextmanager
    def passes(self, mini: MiniBatch) -> Iterator[None]:
        """Within, the policy's passes count, unless they leave the policy as it is; their layers that are
        computed again do not."""
        self._is_counting = not mini.forward_only
        try:
            yield
        finally:
            self._is_counting = False

    def accumulated(self, mini: MiniBatch, tally: Tally) -> None:
        """Sums what all ranks counted since the last call: the tokens of one optimizer step."""
        if mini.forward_only:
            return
        self._latest = self._own.clone()
        self._own.zero_()
        # Each layer of each token was counted on one rank.
        dist.all_reduce(self._latest)
        self._all += self._latest

    @torch.no_grad()
    def stepped(self, norm: float | None) -> None:
        """Biases of experts with less than the mean load of the last step rise, of others fall (Wang et al.
        2024, arXiv 2408.15664)."""
        if norm is None or not self._rate:
            return
        for layer, router in self._routers.items():
            loads = self._latest[layer]
            router._maintain_float32_expert_bias()
            router.expert_bias.add_(torch.sign(loads.mean() - loads).float(), alpha=self._rate)

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Loads of all tokens that were collected since the last call."""
        found = load_metrics(self._all, self._shape)
        self._all.zero_()
        return found

    def _begin(self, chunk: torch.nn.Module, inputs: tuple[MicroBatch, float]) -> None:
        if not self._is_counting:
            return
        micro = inputs[0]
        counts = torch.bincount(micro.predicting, minlength=len(micro.tokens)).double()
        self._counts = own_tokens(counts, of_tensor_rank=self._divides_tokens)

    def _end(self, chunk: torch.nn.Module, inputs: object, outputs: object) -> None:
        self._counts = None

    def _counter(self, layer: int) -> Callable[[torch.nn.Module, object, tuple[Tensor, Tensor]], None]:
        def count(router: torch.nn.Module, inputs: object, outputs: tuple[Tensor, Tensor]) -> None:
            if self._counts is not None:
                # [C] x [C, E], the second whether an expert got a token.
                self._own[layer] += self._counts @ outputs[1].double()

        return count


def load_metrics(loads: Tensor, shape: ModelShape) -> dict[str, float]:
    """[L, E] tokens -> of the layer where it is worst: load of the busiest expert as a multiple of the mean,
    share of the tokens that it gets, share of the experts that get none. Layers without experts have none."""
    used = loads[loads.sum(1) > 0]
    if not len(used):
        return {}
    busiest = used.max(1).values
    shares = busiest / (used.sum(1) / shape.experts_per_token)
    return {
        "expert_load_max": (busiest / used.mean(1)).max().item(),
        "busiest_expert_share": shares.max().item(),
        "idle_expert_share": (used == 0).double().mean(1).max().item(),
    }
