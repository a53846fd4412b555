"""Columns that servers send with tokens where a feature asks for them: the tokens that each was sampled from,
and the experts that its pass through a mixture took."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncrl.errors import ServerError
from asyncrl.model.column_bytes import FIRST_ROW, KEPT_SETS, ROUTES, first_kept_sets, pack_kept_set, row_bytes
from asyncrl.model.folder import read_shape
from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.serving.sglang.messages import Prefix, ServedColumn, Values


@dataclass(frozen=True, slots=True)
class KeptSets(ServedColumn):
    """The tokens that top-p, top-k and min-p left: log-probs are over these. Greedy tokens have none."""

    name: ClassVar = KEPT_SETS
    fields: ClassVar = (
        ("output_token_sampling_mask", list[list[int]] | None, None),
        ("output_token_sampling_logprobs", list[float | None] | None, None),
    )
    title: ClassVar = "kept sets"
    reason: ClassVar = "(rollout.top_p, top_k, min_p): the trainer could not know their distribution"
    is_of_greedy: ClassVar = False

    def ask(self, body: dict[str, Any], prefixes: Sequence[Prefix]) -> None:
        body["return_sampling_mask"] = [not prefix.is_greedy for prefix in prefixes]

    def read(self, meta: Any, tokens: list[int], surplus: int) -> Values:
        masks, logprobs = meta.output_token_sampling_mask, meta.output_token_sampling_logprobs or []
        if masks is None:
            return [], None
        if surplus:
            masks, logprobs = masks[: len(tokens)], logprobs[: len(tokens)]
        if not len(masks) == len(logprobs) == len(tokens):
            raise ServerError(
                f"request {meta.id}: {len(tokens)} tokens but {len(masks)} kept sets and {len(logprobs)} "
                f"log-probs over them"
            )
        try:
            # The plain log-probs are those of the whole distribution.
            return [pack_kept_set(token, mask) for token, mask in zip(tokens, masks, strict=True)], logprobs
        except ValueError as error:
            raise ServerError(f"request {meta.id}: {error}") from None

    def first(self, values: bytes, count: int) -> bytes:
        return first_kept_sets(values, count)


@dataclass(frozen=True, slots=True)
class Routes(ServedColumn):
    """The experts of the pass that computed each position, those of the context too."""

    row_bytes: int
    """Bytes of a position's experts (`routes.row_bytes`)."""
    name: ClassVar = ROUTES
    fields: ClassVar = (("routed_experts", str | None, None),)
    title: ClassVar = "rows of routes"
    reason: ClassVar = "(algorithm.routing_replay): the trainer could not take the same experts"
    is_of_context: ClassVar = True

    def ask(self, body: dict[str, Any], prefixes: Sequence[Prefix]) -> None:
        body["return_routed_experts"] = True
        for params, prefix in zip(body["sampling_params"], prefixes, strict=True):
            params["custom_params"] = {FIRST_ROW: prefix.num_computed}

    def read(self, meta: Any, tokens: list[int], surplus: int) -> Values:
        try:
            packed = base64.b64decode(meta.routed_experts or "", validate=True)
        except binascii.Error as error:
            raise ServerError(f"request {meta.id}: its routed_experts are not base64: {error}") from None
        if len(packed) % self.row_bytes:
            raise ServerError(
                f"request {meta.id}: {len(packed)} bytes of routes are no rows of {self.row_bytes}"
            )
        return [packed[i : i + self.row_bytes] for i in range(0, len(packed), self.row_bytes)], None

    def first(self, values: bytes, count: int) -> bytes:
        return values[: count * self.row_bytes]


def served_columns(recipe: Recipe) -> tuple[ServedColumn, ...]:
    """The columns that a recipe's trainer needs. Looks at the model only for routes."""
    found: list[ServedColumn] = [KeptSets()] if recipe.rollout.is_truncated() else []
    if recipe.replays_routes():
        found.append(Routes(row_bytes(read_shape(model_folder(recipe.model)))))
    return tuple(found)
