"""Other weights than the policy's: the reference that the KL is taken to, and past versions of the policy.

The reference is the base model, or with algorithm.kl.refresh_steps the policy of the last refresh. A
policy with adapters is its own reference: without them it is the base model. Shapes: T response tokens of one
micro-batch.

Past versions (trainer.splits_staleness) give log-probs of stale tokens under the version that sampled them.
This rank's weights of the last versions are kept in host memory, and one model beside the policy takes them
over one after the other. For each version that a batch's stale tokens are of, the sequences with such tokens
pass it once, forward. After a resume the versions before it are gone: their tokens have no number.
"""

import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.divergences import DIVERGENCES
from asyncrl.model.layout import Layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import model_folder
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe import Algorithm, Model, Recipe
from asyncrl.records import Batch, PolicyVersion, root_id
from asyncrl.trainer.network.adapters import without_adapters
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.experts import all_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import Policy, build_frozen, device
from asyncrl.trainer.packing.batch import MicroBatch, make_micro_batch
from asyncrl.trainer.step.batch_values import Parts, sum_over_ranks, whitened, with_advantages
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.optimizer_state import reset_state
from asyncrl.trainer.step.part import MiniBatch, Saved, Step, StepPart


class ReferenceModel:
    """This rank's chunks; at first the model at `model.path`, as it was before any training."""

    def __init__(self, shape: ModelShape, section: Model, layout: Layout, unsampled: Unsampled) -> None:
        self.model, self.chunks = build_frozen(shape, section, layout, unsampled)
        load_weights(self.model, open_weights(model_folder(section)))

    def active(self) -> AbstractContextManager[None]:
        """Within, `chunks` compute the reference."""
        return contextlib.nullcontext()

    @torch.no_grad()
    def copy_from(self, policy: Policy) -> None:
        """Takes over the weights of `policy`, which has the same shape, layout and type."""
        for own, other in zip(all_weights(self.model), all_weights(policy), strict=True):
            own.copy_(other)


class OwnReference:
    """The policy without its adapters: no second copy of the weights."""

    def __init__(self, policy: Policy, chunks: Sequence[torch.nn.Module]) -> None:
        """`chunks` are the policy's, in whatever wrappers."""
        self._policy = policy
        self.chunks = list(chunks)

    def active(self) -> AbstractContextManager[None]:
        """Within, `chunks` compute the reference."""
        return without_adapters(self._policy)

    def copy_from(self, policy: Policy) -> None:
        raise AssertionError("a recipe with adapters refreshes no reference")


class Reference(StepPart):
    """The reference model: refreshed before a step, evaluated for the loss where the KL is in the loss."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._learner = learner
        algorithm = recipe.algorithm
        self._every = algorithm.kl.refresh_steps
        self._resets_optimizer = algorithm.kl.refresh_resets_optimizer
        self._is_in_loss = not algorithm.has_kl_reward()
        model = learner.model
        self.held: ReferenceModel | OwnReference = (
            ReferenceModel(learner.shape, recipe.model, learner.layout, learner.unsampled)
            if model.lora is None
            else OwnReference(model, learner.parallel_chunks)
        )

    def prepare(self, step: Step) -> None:
        """Makes the step's version the reference where it is due.

        Before the step, not behind the last: so a checkpoint needs no word on whether it was done.
        """
        if not self._every:
            return
        if step.version and step.version % self._every == 0:
            self.held.copy_from(self._learner.model)
            if self._resets_optimizer:
                reset_state(self._learner.optimizer)
        step.metrics["reference_version"] = float(step.version - step.version % self._every)

    def loss_inputs(self, mini: MiniBatch) -> None:
        if not self._is_in_loss:
            return
        evaluate = functools.partial(self.logprobs, mini.micro_batches, mini.temperature)
        references = self._learner.objective.references(mini.micro_batches, evaluate)

        def give(index: int, *_: object) -> Mapping[str, Any]:
            return {"reference": references[index]}

        mini.givens.append(give)

    def logprobs(self, micro_batches: list[MicroBatch], temperature: float) -> list[Tensor]:
        """[T] over all tokens of each micro-batch; empty on all pipeline stages but the last."""
        with self.held.active():
            # A policy with adapters is its own reference, and the reference routes for itself.
            untold = [micro.without_inputs() for micro in micro_batches]
            return self._learner.passes.whole_logprobs(self.held.chunks, untold, temperature)

    def saved(self) -> Iterator[Saved]:
        # `model.lora` and a reference that is refreshed exclude each other.
        if self._every and isinstance(self.held, ReferenceModel):
            missing = (
                "no reference, which algorithm.kl.refresh_steps needs: the run was begun without it. "
                "Set algorithm.kl.refresh_steps to 0, or run_folder to a new folder."
            )
            yield Saved("reference.", self.held.model, None, missing)


class KlReward(StepPart):
    """KL to the reference, taken from the rewards of tokens.

    A critic takes the penalties into its rewards. Without one they are taken from the batch's advantages,
    which are whitened afterwards where the advantage is.
    """

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        reference = learner.part(Reference)
        assert reference is not None
        self._reference = reference
        self._algorithm = recipe.algorithm
        self._mask_staleness = recipe.rollout.mask_staleness

    def evaluate(self, step: Step) -> None:
        step.penalties = []
        for mini, found in zip(step.mini_batches, step.policy_logprobs(), strict=True):
            references = self._reference.logprobs(mini.micro_batches, mini.temperature)
            # Empty on all stages but the last.
            known = zip(mini.micro_batches, found, references, strict=True) if found else ()
            step.penalties.append(
                [
                    kl_penalties(micro, whole, r, self._algorithm, mask_staleness=self._mask_staleness)
                    for micro, (_, whole), r in known
                ]
            )

    def advantages(self, step: Step) -> None:
        if step.penalties is None:
            return
        names = list(dict.fromkeys(root_id(one.sequence_id) for one in step.batch.sequences))
        step.replace(
            with_kl_reward(
                step.micro_batches(),
                step.penalties,
                self._algorithm,
                names=names,
                mask_staleness=self._mask_staleness,
            )
        )
        step.penalties = None


def kl_penalties(
    micro: MicroBatch,
    proximal: Tensor,
    reference: Tensor,
    algorithm: Algorithm,
    *,
    mask_staleness: int | None = None,
) -> Tensor:
    """[T] coefficient * kl of each token, 0 for those that no loss counts. Both log-probs are over all
    tokens, whatever servers kept."""
    divergence = DIVERGENCES[algorithm.kl.estimator](proximal, reference)
    is_counted = micro.counted(mask_staleness).to(divergence.device)
    return algorithm.kl.coefficient * torch.where(is_counted, divergence, 0.0)


def with_kl_reward(
    parts: Parts,
    penalties: list[list[Tensor]],
    algorithm: Algorithm,
    *,
    names: list[str],
    mask_staleness: int | None,
) -> Parts:
    """Advantages less the KL that a token and those after it run up, then whitened where the advantage is.

    A_t - sum_{s >= t} penalty_s: the return-to-go of a reward of -penalty per token, as in REINFORCE++ (Hu et
    al. 2025, arXiv 2501.03262), which whitens afterwards. Under rloo the others' penalties are in the
    baseline too, whose rewards hold them (Ahmadian et al. 2024, arXiv 2402.14740). Other baselines of a group
    stay those of its rewards, which changes no expected gradient. `names` are of the whole batch's sequences.
    """
    found = [
        [
            micro.advantages.to(each.device) - sum_from_here(each, micro.line_ids.to(each.device))
            for micro, each in (zip(part, own, strict=True) if own else ())
        ]
        for part, own in zip(parts, penalties, strict=True)
    ]
    if algorithm.advantage.name == "rloo":
        baselines = _penalties_of_the_others(parts, penalties, names)
        found = [
            [
                each + _per_token(baselines, micro).to(each)
                for each, micro in (zip(own, part, strict=True) if own else ())
            ]
            for own, part in zip(found, parts, strict=True)
        ]
    if algorithm.is_whitened():
        found = whitened(found, parts, algorithm, mask_staleness=mask_staleness)
    return with_advantages(parts, found)


def _penalties_of_the_others(
    parts: Parts, penalties: list[list[Tensor]], names: list[str]
) -> dict[str, float]:
    """Sequence -> mean of the summed penalties of its group's other sequences, wherever these are packed."""
    places = {name: i for i, name in enumerate(names)}
    own_totals = torch.zeros(len(names), dtype=torch.float64)
    for part, own in zip(parts, penalties, strict=True):
        for micro, each in zip(part, own, strict=True) if own else ():
            ids = micro.sequence_ids
            sums = own_totals.new_zeros(len(micro.names)).index_add(0, ids.cpu(), each.double().cpu())
            for name, total in zip(micro.names, sums.tolist(), strict=True):
                # A micro-batch without sequences holds one without a name or a token.
                if name in places:
                    own_totals[places[name]] = total
    totals = sum_over_ranks([own_totals.to(device())], len(names)).tolist()
    groups: dict[str, list[float]] = defaultdict(list)
    for name, total in zip(names, totals, strict=True):
        groups[name.rpartition("-")[0]].append(total)
    baselines = {}
    for name, total in zip(names, totals, strict=True):
        group = groups[name.rpartition("-")[0]]
        baselines[name] = (math.fsum(group) - total) / max(len(group) - 1, 1)
    return baselines


def _per_token(values: dict[str, float], micro: MicroBatch) -> Tensor:
    """[T] each token's sequence's value."""
    by_sequence = torch.tensor([values.get(name, 0.0) for name in micro.names], dtype=torch.float64)
    return by_sequence[micro.sequence_ids.cpu()]


def sum_from_here(values: Tensor, sequence_ids: Tensor) -> Tensor:
    """[T] -> [T]: each token gets the sum of itself and the later tokens of its sequence.

    `sequence_ids` [T] ascending. Sums are float64.
    """
    # On a GPU torch has no running sum of floats that is always the same.
    exact, ids = values.double().cpu(), sequence_ids.cpu()
    size = int(ids.max()) + 1 if len(ids) else 0
    ends = exact.new_zeros(size).index_add(0, ids, exact).cumsum(0)
    return (ends[ids] - exact.cumsum(0) + exact).to(values)


class PastVersions(StepPart):
    """The last `rollout.max_staleness` versions before the one in training."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._learner = learner
        self.model, self._chunks = build_frozen(
            learner.shape, recipe.model, learner.layout, learner.unsampled
        )
        self._num_kept = recipe.rollout.max_staleness
        self._kept: dict[PolicyVersion, list[Tensor]] = {}

    def policies(self) -> Iterator[Policy]:
        yield self.model

    def evaluate(self, step: Step) -> None:
        found = self.logprobs(step.micro_batches(), step.batch)
        for mini, sampled in zip(step.mini_batches, found, strict=True):

            def give(index: int, *_: object, sampled: list[Tensor] = sampled) -> Mapping[str, Any]:
                return {"sampled": sampled[index]}

            mini.givens.append(give)

    @torch.no_grad()
    def keep(self, version: PolicyVersion) -> None:
        """Copies the weights of the policy, which are `version`; forgets the oldest.

        Of recorded batches too: tokens that are generated by the end of a critic's warm-up are of its
        versions.
        """
        self._kept.pop(version, None)
        while len(self._kept) >= self._num_kept:
            del self._kept[min(self._kept)]
        self._kept[version] = [
            weights.detach().to("cpu", copy=True) for weights in all_weights(self._learner.model)
        ]

    def logprobs(self, parts: Sequence[Sequence[MicroBatch]], batch: Batch) -> list[list[Tensor]]:
        """[T] of each micro-batch of each mini-batch: log-probs of its stale tokens, NaN of all others and of
        versions that are not kept. A call of every rank, each with its part of `batch`."""
        learner, device = self._learner, self._learner.device
        micro_batches = [micro for part in parts for micro in part]
        found = [torch.full((len(micro.targets),), torch.nan, device=device) for micro in micro_batches]
        lines = {sequence.sequence_id: sequence for sequence in batch.sequences}
        for version in sorted(self._needed(batch)):
            self._load(version)
            lag = batch.taken_version - version
            chosen = [micro.line_ids[micro.lags == lag].unique().tolist() for micro in micro_batches]
            packed = [
                make_micro_batch(
                    [lines[micro.lines[i]] for i in own],
                    batch.taken_version,
                    token_multiple=learner.layout.token_multiple(),
                    kernel=learner.kernel,
                    columns=learner.columns(),
                )
                for micro, own in zip(micro_batches, chosen, strict=True)
            ]
            known = learner.passes.logprobs(self._chunks, packed, batch.temperature)
            # Empty on all pipeline stages but the last, which alone compute a loss.
            for i, values in enumerate(known):
                into, out = micro_batches[i].lags == lag, packed[i].lags == lag
                found[i][into.to(device)] = values[out.to(values.device)].float()
        by_part = iter(found)
        return [[next(by_part) for _ in part] for part in parts]

    def _needed(self, batch: Batch) -> Iterable[PolicyVersion]:
        """Kept versions that stale tokens of the whole batch are of, the same on every rank."""
        versions = (np.unique(np.asarray(one.token_versions, np.int64)) for one in batch.sequences)
        of_tokens = {version for own in versions for version in own.tolist()}
        return (of_tokens - {batch.taken_version}) & self._kept.keys()

    @torch.no_grad()
    def _load(self, version: PolicyVersion) -> None:
        for own, kept in zip(all_weights(self.model), self._kept[version], strict=True):
            own.copy_(kept)
