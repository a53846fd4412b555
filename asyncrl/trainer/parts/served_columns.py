"""Columns that servers say with tokens: kept sets, which log-probs are over, and routes, which routers
replay.

Under routing replay the routers of a policy choose the experts that they are told, and compute the gates.
What a pack tells (`PackedSequences.columns`) reaches each layer with its own arguments, in the passes that
recompute activations too, however micro-batches interleave. Each router has a replay of its own in the place
of Megatron-core's `RouterReplay`, which is one list for all models of a process: critic and reference have
none here, and no pack can move their routing. Sources: R2, Zheng et al. 2025 (arXiv 2507.18071); R3, Ma et
al. 2025 (arXiv 2510.11370).

Shapes: C tokens that this rank's router sees, E experts, K of them chosen.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from asyncrl.errors import InputError
from asyncrl.model.column_bytes import KEPT_SETS, ROUTES, num_kept_sets, replayed_row_bytes
from asyncrl.recipe import Recipe
from asyncrl.records import Batch
from asyncrl.trainer.network.model import Policy, device
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.columns import Column
from asyncrl.trainer.packing.context_parallel import own_tokens
from asyncrl.trainer.packing.routes import UNKNOWN, GivenRoutes, RecordedRoutes, RouteColumn
from asyncrl.trainer.packing.terms import KeptColumn
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import Step, StepPart


class KeptTokens(StepPart):
    """Renormalizes predictions over kept sets, and refuses batches without them, or with some where the
    recipe's sampling leaves all tokens: their log-probs are of another distribution than the trainer's."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._is_truncated = recipe.rollout.is_truncated()

    def columns(self) -> list[Column]:
        return [KeptColumn()]

    def check(self, batch: Batch) -> None:
        for sequence in batch.sequences:
            num_sets, num_tokens = num_kept_sets(sequence.columns.get(KEPT_SETS, b"")), sequence.num_sampled()
            wanted, state = (num_tokens, "set") if self._is_truncated else (0, "not set")
            if num_sets != wanted:
                raise InputError(
                    f"Step {batch.taken_version + 1} has {num_sets} kept sets for the {num_tokens} tokens of "
                    f"response {sequence.sequence_id}, expected {wanted}: rollout.top_k is {state}. To start "
                    f"over, set run_folder (or name) to a new one."
                )


TopK = Callable[..., tuple[Tensor, Tensor]]


def record_routes(parts: Iterable[Sequence[MicroBatch]]) -> None:
    """The next pass of the policy through these micro-batches chooses, later ones take the same experts."""
    for part in parts:
        for micro in part:
            num_predicted = micro.predicting.bincount(minlength=len(micro.tokens))
            micro.sequences.columns[ROUTES] = RecordedRoutes(num_predicted)


class RouteCheck(StepPart):
    """Refuses batches whose responses have routes that nothing replays, or lack those that are replayed."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._row_bytes = replayed_row_bytes(recipe, learner.shape)
        """Bytes of a position's routes; 0 where none are replayed."""

    def columns(self) -> list[Column]:
        return [RouteColumn()]

    def check(self, batch: Batch) -> None:
        for sequence in batch.sequences:
            wanted = self._row_bytes * sequence.num_inputs()
            num_bytes = len(sequence.columns.get(ROUTES, b""))
            if num_bytes != wanted:
                raise InputError(
                    f"Step {batch.taken_version + 1} has {num_bytes} bytes of routes for the "
                    f"{sequence.num_inputs()} positions of response {sequence.sequence_id}, expected "
                    f"{wanted}: algorithm.routing_replay is "
                    f"{'rollout' if self._row_bytes else 'not rollout'}. To start over, set run_folder (or "
                    f"name) to a new one."
                )


class RoutingReplay(StepPart):
    """Replays routes in the policy and in the models of parts that hold versions of it."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._records = recipe.algorithm.routing_replay == "proximal"
        others = [model for part in learner.parts for model in part.policies()]
        self.replay = Replay(learner.model, *others)

    def packed(self, step: Step) -> None:
        if self._records:
            record_routes(step.micro_batches()[1:])

    def report(self) -> dict[str, float]:
        return self.replay.take_metrics()


class Replay:
    """The replay of a policy's routers, and how often they would have chosen otherwise."""

    def __init__(self, *policies: Policy) -> None:
        """From now on the routers of `policies` choose as the packs say that pass them."""
        self._counts: Tensor | None = None
        """[2] int64: replayed choices on this rank that a router would have made otherwise, and all."""
        for policy in policies:
            for chunk in policy:
                for layer in chunk.decoder.layers:
                    router = getattr(layer.mlp, "router", None)
                    if isinstance(router, TopKRouter):
                        replay = RouterChoice(router, self.add)
                        router.router_replay = replay
                        layer.register_forward_pre_hook(replay.note, with_kwargs=True)

    def add(self, differs: Tensor, counts: Tensor) -> None:
        """[C] bool; [C] int64, as how many choices each counts."""
        found = torch.stack([counts[differs].sum(), counts.sum()])
        self._counts = found if self._counts is None else self._counts + found

    def take_metrics(self) -> dict[str, float]:
        """`routing_mismatch`: the share of the replayed choices since the last call, one per response token
        and layer, that the routers would have made otherwise. A call of every rank."""
        counts = torch.zeros(2, dtype=torch.int64, device=device()) if self._counts is None else self._counts
        dist.all_reduce(counts)
        self._counts = None
        differing, replayed = counts.tolist()
        return {"routing_mismatch": differing / replayed if replayed else 0.0}


class RouterChoice:
    """The choice of one router; Megatron-core asks it as it would ask its `RouterReplay`."""

    def __init__(self, router: TopKRouter, count: Callable[[Tensor, Tensor], None]) -> None:
        self._layer = router.layer_number - 1
        self._num_experts = router.config.num_moe_experts
        self._is_divided = router.config.sequence_parallel
        self._count = count
        self._routes: GivenRoutes | RecordedRoutes | None = None

    def note(self, _: torch.nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """The layer of this router is about to compute a pack, for the first time or again."""
        sequences = keywords["packed_seq_params"]
        self._routes = sequences.columns.get(ROUTES)

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: TopK | None = None,
    ) -> tuple[Tensor, Tensor]:
        """[C, E] scores -> (those of the chosen [C, K], with gradient; the chosen [C, K] int64)."""
        assert default_compute_topk is not None
        found, own = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        routes = self._routes
        if routes is None:
            return found, own
        if isinstance(routes, RecordedRoutes) and self._layer not in routes.layers:
            routes.layers[self._layer] = own.to(torch.int16)
            return found, own
        told = self._told(routes, topk).to(scores.device, torch.int64)
        is_known = (told != UNKNOWN).all(1)
        chosen = torch.where(is_known[:, None], told, own)
        differs = (chosen.sort(1).values != own.sort(1).values).any(1)
        self._count(differs, self._own(routes.num_predicted).to(differs.device) * is_known)
        return scores.gather(1, chosen), chosen

    def _told(self, routes: GivenRoutes | RecordedRoutes, topk: int) -> Tensor:
        """[C, K]."""
        if isinstance(routes, RecordedRoutes):
            return routes.layers[self._layer]
        return self._own(routes.of_layer(self._layer, topk, self._num_experts))

    def _own(self, tokens: Tensor) -> Tensor:
        """[P, ...] -> [C, ...]. Under sequence parallelism the tensor ranks divide the tokens."""
        return own_tokens(tokens, of_tensor_rank=self._is_divided)
