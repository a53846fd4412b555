"""The routes of packed tokens: the experts that a policy takes at each, in all its layers.

They are given by servers (algorithm.routing_replay: rollout), or recorded in a pass of the policy itself
(proximal). Either kind says those of one layer, for the tokens that this rank's router sees.

Shapes: P packed tokens, C of them that this rank's router sees, B bytes of a row (model/column_bytes.py),
K experts of a token.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from asyncrl.model.column_bytes import ROUTES
from asyncrl.records import ScoredSequence
from asyncrl.trainer.packing.columns import InputColumn
from asyncrl.trainer.packing.prefix_tree import PackedTree

UNKNOWN = -1
"""Stands for each expert of a token whose routes are not known: its router chooses."""


class GivenRoutes:
    """The rows of a pack, as servers said them. They stay in the host's memory: each layer takes its own."""

    def __init__(self, rows: np.ndarray, is_known: np.ndarray, num_predicted: Tensor) -> None:
        """[P, B] uint8, [P] bool: rows of tokens whose routes are not known mean nothing."""
        self.rows = rows
        self.is_known = is_known
        self.num_predicted = num_predicted
        """[P] int64, response tokens that each token predicts."""

    def of_layer(self, layer: int, num_chosen: int, num_experts: int) -> Tensor:
        """[P, K] int16 of the layer of that number, from 0, whose router chooses `num_chosen` experts of
        `num_experts`. Raises ValueError for an expert that there is not."""
        ids = self.rows.view(np.uint8 if num_experts <= 256 else np.dtype("<u2"))
        chosen = ids[:, layer * num_chosen : (layer + 1) * num_chosen].astype(np.int16)
        chosen[~self.is_known] = UNKNOWN
        if chosen.size and (largest := int(chosen.max())) >= num_experts:
            raise ValueError(f"the routes of layer {layer} name expert {largest} of {num_experts}")
        return torch.from_numpy(chosen)


class RecordedRoutes:
    """The choices of the first pass through each layer; later passes take the same."""

    def __init__(self, num_predicted: Tensor) -> None:
        self.num_predicted = num_predicted
        """[P] int64, as in `GivenRoutes`."""
        self.layers: dict[int, Tensor] = {}
        """Number of a layer -> [C, K] int16."""


class RouteColumn(InputColumn):
    name: ClassVar = ROUTES

    def rows(self, sequence: ScoredSequence, count: int | None = None) -> list[bytes]:
        routes, num_inputs = sequence.columns.get(ROUTES, b""), sequence.num_inputs()
        size = len(routes) // num_inputs
        end = size * (num_inputs if count is None else count)
        return [routes[first : first + size] for first in range(0, end, size)] if size else []

    def packed(
        self, sequences: Sequence[ScoredSequence], tree: PackedTree, num_predicted: Tensor
    ) -> GivenRoutes:
        known = {i: _unpacked(one) for i, one in enumerate(sequences) if ROUTES in one.columns}
        (width,) = {own.shape[1] for own in known.values()}
        num_tokens = len(num_predicted)
        rows, is_known = np.zeros((num_tokens, width), np.uint8), np.zeros(num_tokens, np.bool_)
        for i, told in known.items():
            own = np.flatnonzero(tree.sources == i)
            rows[own] = told[tree.positions[own]]
            is_known[own] = True
        return GivenRoutes(rows, is_known, num_predicted)


def _unpacked(sequence: ScoredSequence) -> np.ndarray:
    """[positions but the last, B] uint8."""
    return np.frombuffer(sequence.columns[ROUTES], np.uint8).reshape(sequence.num_inputs(), -1)
