"""The tensors of a model, under the names that Hugging Face gives them. No torch."""

import functools
import math
from collections.abc import Iterator

from asyncrl.model.families.known import FAMILIES
from asyncrl.model.shape import ModelShape


def expected_tensors(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(Hugging Face name, size) of every tensor of the architecture."""
    hidden, family = shape.hidden_size, FAMILIES[shape.architecture]
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        for name, size in family.layer_tensors(shape.of_layer(layer)):
            yield f"model.layers.{layer}.{name}", size
    yield "model.norm.weight", (hidden,)
    if not shape.is_tied:
        yield "lm_head.weight", (shape.vocab_size, hidden)


@functools.lru_cache(maxsize=64)
def num_parameters(shape: ModelShape) -> int:
    """Counted once per shape: a mixture of experts has tens of thousands of tensors."""
    return sum(math.prod(size) for _, size in expected_tensors(shape))
