"""`prepare.options` as the section of the function that takes them."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from asyncrl.errors import InputError
from asyncrl.recipe.sections.section import Count, Positive, PositiveFloat, Section

Progress = Callable[[str, int, int], None]
"""(stage, done, total), called often enough for a bar."""
OptionsOf = TypeVar("OptionsOf", bound=Section)


class Pretraining(Section):
    """The options of every target that makes a base model."""

    examples_per_batch: Positive = 128
    matrix_learning_rate: PositiveFloat = 0.03
    """Rate of the matrices inside the layers, by Muon. Both rates warm up, then fall to a tenth (cosine)."""
    learning_rate: PositiveFloat = 2e-3
    """Rate of embeddings, head and norms, by AdamW."""
    seed: Count = 0
    """Seed of the problems, the corpus, the initial weights and the order of the batches."""


def parse_options(kind: type[OptionsOf], options: dict[str, Any]) -> OptionsOf:
    """`prepare.options` as the target's own section. Raises InputError that names the key."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(map(str, details["loc"]))
        known = ", ".join(kind.model_fields)
        raise InputError(f"prepare.options.{key}: {details['msg']}. Options: {known}.") from None
