"""The routes of packed tokens: the experts that a policy takes at each, in all its layers.

They are given by servers (algorithm.routing_replay: rollout), or recorded in a pass of the policy itself
(proximal). Either kind says those of one layer, for the tokens that this rank's router sees.

Shapes: P packed tokens, C of them that this rank's router sees, B bytes of a row (asyncrl/model/routes.py),
K experts of a token.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.records import ScoredSequence

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


def unpack_rows(sequence: ScoredSequence) -> np.ndarray:
    """[positions but the last, B] uint8."""
    return np.frombuffer(sequence.routes, np.uint8).reshape(sequence.num_inputs(), -1)


def routed_symbols(sequences: Sequence[ScoredSequence]) -> list[np.ndarray] | None:
    """Numbers for the tokens of each sequence, equal for equal tokens that took equal experts; None where no
    sequence has routes. Those of a token without them are its own, below 0."""
    if not any(sequence.routes for sequence in sequences):
        return None
    numbers: dict[tuple[int, bytes], int] = {}
    found = []
    for sequence in sequences:
        tokens = [*sequence.prompt_tokens, *sequence.response_tokens]
        symbols = [-1 - token for token in tokens]
        if sequence.routes:
            size, routes = len(sequence.routes) // sequence.num_inputs(), sequence.routes
            for i in range(sequence.num_inputs()):
                row = routes[i * size : (i + 1) * size]
                symbols[i] = numbers.setdefault((tokens[i], row), len(numbers))
        found.append(np.array(symbols, np.int64))
    return found


def give_routes(
    sequences: Sequence[ScoredSequence], sources: np.ndarray, positions: np.ndarray, num_predicted: Tensor
) -> GivenRoutes | None:
    """The routes of P packed tokens, of which those that are not padding are tokens of `sources` at
    `positions`. None where no sequence has routes."""
    widths = {unpack_rows(sequence).shape[1] for sequence in sequences if sequence.routes}
    if not widths:
        return None
    (width,), num_tokens = widths, len(num_predicted)
    rows, is_known = np.zeros((num_tokens, width), np.uint8), np.zeros(num_tokens, np.bool_)
    for i, sequence in enumerate(sequences):
        if sequence.routes:
            own = np.flatnonzero(sources == i)
            rows[own] = unpack_rows(sequence)[positions[own]]
            is_known[own] = True
    return GivenRoutes(rows, is_known, num_predicted)
