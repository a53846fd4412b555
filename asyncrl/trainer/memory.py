"""How many bytes a trainer rank and a rollout server need, from the shape of the model alone. No torch.

Weights, gradients and optimizer states are exact for what Megatron allocates here; activations are counted
from what autograd was measured to hold (within a factor of 1.5 over shapes and packs, see the tests), logits
from the copies of [response tokens, vocabulary] that are alive at once. Data-parallel ranks repeat all of it.
"""

import math
from dataclasses import dataclass

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.trainer.folder import ModelShape, expected_tensors

KINDS = ("embedding", "attention", "mlp", "experts", "norms", "output layer")
LOGIT_COPIES = 4
"""Float32 [T, V] alive at once, as measured: logits, log-probs, probabilities and entropies."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """Over how many ranks one copy of the model is spread."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    """Over how many of the data-parallel ranks each layer's experts are spread."""

    def ranks_per_replica(self) -> int:
        return self.tensor * self.pipeline


WHOLE = Parallel()


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one trainer rank by kind; of the pipeline stage that needs most."""

    weights: int
    gradients: int
    optimizer: int
    checkpoint_copy: int
    """Lives while a checkpoint is written beside training."""
    activations: int
    activations_recomputed: int
    """With full recomputation in place of `activations`."""
    logits: int
    critic: int = 0
    """Weights, gradients, optimizer and checkpoint copy of the value model; its passes come before the
    policy's, so that both never hold activations at once."""

    def total(self, *, is_recomputing: bool = False) -> int:
        activations = self.activations_recomputed if is_recomputing else self.activations
        state = self.weights + self.gradients + self.optimizer + self.checkpoint_copy
        return state + activations + self.logits + self.critic


def parameters_by_kind(shape: ModelShape) -> dict[str, int]:
    """Kind (of KINDS) -> parameters of the whole model; a tied output layer has none of its own."""
    counts = dict.fromkeys(KINDS, 0)
    for name, size in expected_tensors(shape):
        counts[_kind(name)] += math.prod(size)
    return counts


def rank_memory(
    shape: ModelShape,
    *,
    dtype: str,
    tokens_per_micro_batch: int,
    parallel: Parallel = WHOLE,
    has_critic: bool = False,
) -> RankMemory:
    """Of the fullest rank. Raises InputError when the model cannot be divided so."""
    _check_divisible(shape, parallel)
    width, is_mixed = (4, False) if dtype == "float32" else (2, True)
    parameters = _rank_parameters(shape, parallel)
    per_parameter = width + 4 + 2 * (12 if is_mixed else 8) + width
    values = _rank_parameters(shape, parallel, is_critic=True) if has_critic else 0
    layers = math.ceil(shape.num_layers / parallel.pipeline)
    # Of 1F1B, the first stage holds as many micro-batches as there are stages.
    tokens = tokens_per_micro_batch * parallel.pipeline
    layer = _layer_floats(shape, parallel.tensor) * width * tokens
    return RankMemory(
        weights=parameters * width,
        gradients=parameters * 4,
        optimizer=parameters * (12 if is_mixed else 8),
        checkpoint_copy=parameters * (width + (12 if is_mixed else 8)),
        activations=layers * layer,
        activations_recomputed=layer + layers * shape.hidden_size * width * tokens,
        logits=LOGIT_COPIES * 4 * tokens_per_micro_batch * (shape.vocab_size // parallel.tensor),
        critic=values * per_parameter,
    )


def server_memory(shape: ModelShape, recipe: Recipe) -> dict[str, int]:
    """Bytes of one rank of one server: weights and key-value cache."""
    width = 4 if recipe.model.dtype == "float32" else 2
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_size * width
    ranks = recipe.serving.tensor_parallel_size
    return {
        "weights": shape.num_parameters() * width // ranks,
        "kv_cache": recipe.serving.max_total_tokens * per_token // ranks,
    }


def _kind(name: str) -> str:
    if "embed_tokens" in name:
        return "embedding"
    if "lm_head" in name:
        return "output layer"
    if "norm" in name:
        return "norms"
    if ".experts." in name:
        return "experts"
    return "attention" if ".self_attn." in name else "mlp"


def _rank_parameters(shape: ModelShape, parallel: Parallel, *, is_critic: bool = False) -> int:
    """Of the fullest rank: its layers, and the embedding or the output layer, whichever stage has more.

    Of a critic, which has no output layer but a value per position.
    """
    counts = parameters_by_kind(shape)
    share = math.ceil(shape.num_layers / parallel.pipeline) / shape.num_layers
    layers = round(share * (counts["attention"] + counts["mlp"])) // parallel.tensor
    experts = round(share * counts["experts"]) // (parallel.tensor * parallel.expert)
    norms = round(share * counts["norms"])
    ends = counts["embedding"] + counts["output layer"]
    if parallel.pipeline > 1:
        # The last stage of a tied model has a copy of the embedding in place of an output layer.
        ends = max(counts["embedding"], counts["output layer"])
    if is_critic:
        # The head stands where the final norm does, and weighs as little.
        ends, norms = counts["embedding"], norms + shape.hidden_size
    return layers + experts + norms + ends // parallel.tensor


def _layer_floats(shape: ModelShape, tensor: int) -> float:
    """Numbers that autograd holds per packed token and layer, as measured (hidden state is not divided)."""
    query = shape.num_heads * shape.head_size
    key_value = 2 * shape.num_kv_heads * shape.head_size
    return 6 * shape.hidden_size + (7 * query + 2 * key_value + 5 * shape.ffn_size) / tensor


def _check_divisible(shape: ModelShape, parallel: Parallel) -> None:
    for name, size, ranks in (
        ("attention heads", shape.num_heads, parallel.tensor),
        ("key-value heads", shape.num_kv_heads, parallel.tensor),
        ("feed-forward units", shape.ffn_size, parallel.tensor),
        ("vocabulary entries", shape.vocab_size, parallel.tensor),
        ("layers", shape.num_layers, parallel.pipeline),
    ):
        if size % ranks:
            raise InputError(
                f"the model has {size} {name}, which {ranks} ranks cannot share evenly. Expected a divisor "
                f"of {size}."
            )
