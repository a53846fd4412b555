"""How many bytes a trainer rank and a rollout server need, from the shape of the model alone. No torch.

Weights, gradients and optimizer states are exact for what Megatron allocates here; activations are counted
from what autograd was measured to hold (within a factor of 1.5 over shapes and packs, see the tests), logits
from the copies of [response tokens, vocabulary] that are alive at once. Data-parallel ranks each need all of
it, except the optimizer's states where those are distributed, and a share of the copy that a checkpoint is
written from. On a GPU that copy is in host memory, all else on the device.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from asyncrl.model.dtype import find_dtype
from asyncrl.model.layout import ONE_PROCESS, Layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.supported import adapter_parameters, largest_matrix
from asyncrl.model.weights import expected_tensors, num_parameters
from asyncrl.recipe import Recipe, Trainer
from asyncrl.recipe.sections.model import Lora
from asyncrl.recipe.server_options import STATES_PER_REQUEST

KINDS = ("embedding", "attention", "mlp", "experts", "norms", "output layer")
LOGITS_AT_ONCE = 2**26
"""Float32, 256 MiB: log-probs are computed for as many tokens at a time as keep below it."""
GPU_LOGITS_AT_ONCE = 2**28
"""On a GPU, 1 GiB. 32,768 tokens of a vocabulary of 151,936 are 19 products of 1,766 tokens, not 75 of 441;
each reads and writes the gradient of the output layer once. `LOGIT_COPIES` of them are 4 GiB."""
OFFLOADED = 4 * 4
"""Bytes per parameter of Adam on the host: float32 weight, its gradient, two moments."""
LOGIT_COPIES = 4
"""Float32 [T, V] alive at once, as measured: logits, log-probs, probabilities and entropies."""


@dataclass(frozen=True, slots=True)
class AdamStates:
    """Where Adam's states are, bytes per parameter, and whether Muon has the matrices."""

    exp_avg: int = 4
    exp_avg_sq: int = 4
    is_on_host: bool = False
    is_muon: bool = False
    """Matrices inside the layers have one float32 momentum in place of two moments."""

    @classmethod
    def of(cls, section: Trainer) -> "AdamStates":
        widths = {"float32": 4, "bfloat16": 2}
        return cls(
            widths[section.exp_avg_dtype],
            widths[section.exp_avg_sq_dtype],
            section.optimizer_cpu_offload,
            section.optimizer.name == "muon",
        )


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one trainer rank by kind; of the pipeline stage that needs most."""

    weights: int
    gradients: int
    optimizer: int
    checkpoint_copy: int
    """From the first checkpoint on, its memory is kept; 0 where training waits for the write instead."""
    activations: int
    activations_recomputed: int
    """With full recomputation in place of `activations`."""
    activations_selective: int
    """With norms and feed-forward parts recomputed."""
    logits: int
    output_gradient: int
    """Gradient of the output layer, while its backward pass sums it up in float32, apart from `gradients`."""
    critic: int = 0
    """Weights, gradients and optimizer of the value model; its passes come before the policy's, so that both
    never hold activations at once."""
    critic_copy: int = 0
    """As `checkpoint_copy`, of the critic."""
    reference: int = 0
    """Weights of the frozen model that the KL is taken to."""
    past_model: int = 0
    """Weights of the model that versions before the one in training are evaluated with."""
    past_versions: int = 0
    """Host memory of the weights of these versions."""
    merging: int = 0
    """A matrix with its adapter, in float32 and as it is rounded, while a layer computes."""
    offloaded: int = 0
    """Host memory of Adam on the CPU of a rank that computes on a GPU, that of the critic included: states,
    float32 weights, and room for the gradients."""

    def computing(self, recompute: str = "none") -> int:
        """Where the rank computes with trainer.recompute: all but the copies, which a rank on a GPU has in
        host memory."""
        fewer = {"selective": self.activations_selective, "full": self.activations_recomputed}
        activations = fewer.get(recompute, self.activations)
        return self.resident() + activations + self.logits + self.output_gradient + self.merging

    def resident(self) -> int:
        """Memory that stays in use on the rank's device between two steps."""
        models = self.weights + self.critic + self.reference + self.past_model
        return models + self.gradients + self.optimizer

    def copies(self) -> int:
        """Copies that a checkpoint is written from."""
        return self.checkpoint_copy + self.critic_copy

    def beside(self) -> int:
        """Host memory of a rank that computes on a GPU too, without `copies`."""
        return self.offloaded + self.past_versions

    def total(self, recompute: str = "none") -> int:
        """All of it, as on a CPU."""
        return self.computing(recompute) + self.copies() + self.beside()


@functools.lru_cache(maxsize=64)
def parameters_by_kind(shape: ModelShape) -> Mapping[str, int]:
    """Kind (of KINDS) -> parameters of the whole model; a tied output layer has none of its own. Counted once
    per shape: a mixture of experts has tens of thousands of tensors."""
    counts = dict.fromkeys(KINDS, 0)
    for name, size in expected_tensors(shape):
        counts[_kind(name)] += math.prod(size)
    return counts


def rank_memory(
    shape: ModelShape,
    *,
    dtype: str,
    tokens_per_micro_batch: int,
    layout: Layout = ONE_PROCESS,
    has_critic: bool = False,
    freezes_critic_attention: bool = False,
    has_reference: bool = False,
    saves_reference: bool = False,
    saves_in_background: bool = True,
    num_past_versions: int = 0,
    adam: AdamStates = AdamStates(),
    float32_logits: bool = False,
    lora: Lora | None = None,
    on_gpu: bool = False,
) -> RankMemory:
    """Memory of the fullest rank of a layout that `check_layout` accepts."""
    width, is_mixed = (4, False) if dtype == "float32" else (2, True)
    parameters = _rank_parameters(shape, layout)
    values = _rank_parameters(shape, layout, is_critic=True) if has_critic else 0
    layers = math.ceil(shape.num_layers / layout.pipeline)
    # Under 1F1B the first stage holds as many micro-batches as there are stages.
    tokens = tokens_per_micro_batch * layout.pipeline // layout.context
    attention, feed_forward = (part * width * tokens for part in _layer_floats(shape, layout.tensor))
    layer = attention + feed_forward
    # Data-parallel ranks share what they all hold: each writes a part of it, and optimizes it if distributed.
    share = _data_share(shape, layout)
    values_share = _data_share(shape, layout, is_critic=True) if has_critic else 0
    # Numbers without a gradient: of the fullest stage's layers, of which each rank has its part.
    frozen = round(_attention_parameters(shape, layout)) if freezes_critic_attention else 0
    frozen_share = frozen // (layout.data * layout.context)
    optimized, values_optimized = (
        (share, values_share - frozen_share)
        if layout.is_optimizer_distributed
        else (parameters, values - frozen)
    )
    kept = (4 if is_mixed else 0) + adam.exp_avg + adam.exp_avg_sq
    computed = 0 if adam.is_on_host else kept
    # Muon's matrices are whole on every rank, and the critic has the same.
    saved = adam.exp_avg_sq * _rank_matrices(shape, layout) if adam.is_muon else 0
    saved_copy = int(saves_in_background) * (saved // (layout.data * layout.context))
    values_saved = max(0, saved - adam.exp_avg_sq * frozen) * int(has_critic)
    copied = int(saves_in_background) * (width + kept)
    rows = layout.padded_vocabulary(shape.vocab_size) // layout.tensor
    logits = tokens_per_micro_batch * layout.padded_vocabulary(shape.vocab_size)
    # In one piece autograd makes it once. In chunks there is, with the sum, the part of a chunk or, at last,
    # the sum in the weights' type; on a GPU a stand-in alone (`asyncrl.trainer.network.logprobs`).
    is_chunked = is_mixed or layout.tensor > 1 or logits > LOGITS_AT_ONCE
    has_sum = is_chunked and not on_gpu
    output_gradient = rows * shape.hidden_size * (4 + width if has_sum else width)
    at_once = GPU_LOGITS_AT_ONCE if on_gpu else LOGITS_AT_ONCE
    memory = RankMemory(
        weights=parameters * width,
        gradients=parameters * 4,
        optimizer=optimized * computed - saved,
        checkpoint_copy=(copied + int(saves_in_background and saves_reference) * width) * share - saved_copy,
        activations=round(layers * layer),
        activations_recomputed=round(layer + layers * shape.hidden_size * width * tokens),
        activations_selective=round(layers * attention + feed_forward),
        # A CPU has no product of 16 bits that is summed in float32, and converts the layer.
        logits=LOGIT_COPIES * 4 * min(logits // layout.tensor, at_once)
        + int(float32_logits and is_mixed) * rows * shape.hidden_size * 4,
        output_gradient=output_gradient,
        critic=values * width + (values - frozen) * 4 + values_optimized * computed - values_saved,
        critic_copy=copied * values_share - int(has_critic) * saved_copy,
        reference=parameters * width if has_reference else 0,
        past_model=parameters * width if num_past_versions else 0,
        past_versions=num_past_versions * parameters * width,
        offloaded=(optimized + values_optimized) * OFFLOADED if adam.is_on_host else 0,
    )
    if lora is None:
        return memory
    return _with_adapters(memory, shape, layout, lora, width, saves_in_background=saves_in_background)


def _with_adapters(
    memory: RankMemory,
    shape: ModelShape,
    layout: Layout,
    lora: Lora,
    width: int,
    *,
    saves_in_background: bool,
) -> RankMemory:
    """`memory` where adapters, in float32, are all that is trained; the policy is its own reference."""
    dense, experts = adapter_parameters(shape, lora, layout)
    share = _share_of(dense, experts, layout)
    adapters, moments = dense + experts, 2 * 4
    return replace(
        memory,
        weights=memory.weights + 4 * adapters,
        gradients=4 * adapters,
        optimizer=moments * (share if layout.is_optimizer_distributed else adapters),
        checkpoint_copy=int(saves_in_background) * (4 + moments) * share,
        output_gradient=0,
        reference=0,
        merging=(4 + width) * largest_matrix(shape, layout),
    )


def server_memory(shape: ModelShape, recipe: Recipe, *, on_gpu: bool = False) -> dict[str, int]:
    """Bytes of one rank of one server where it computes: weights, key-value cache and states of linear
    attention. What the engine decides counts nothing: it takes what is free."""
    width, serving = 4 if find_dtype(recipe, shape).name == "float32" else 2, recipe.serving
    cached_width = width if serving.kv_cache_dtype is None else 1
    per_token = shape.attention_layers() * shape.cached_numbers() * cached_width
    ranks = serving.tensor_parallel_size
    # Each group of ranks keeps the tokens of its own requests. One vector for all heads is on every rank.
    holders = ranks // serving.attention_data_parallel_size if shape.latent is None else 1
    cache_tokens = serving.cache_tokens(has_gpu=on_gpu) or 0
    states = STATES_PER_REQUEST * serving.max_running_requests
    weights = num_parameters(shape)
    return {
        "weights": (weights * width - (width - 1) * _quantised(shape, recipe)) // ranks,
        "kv_cache": cache_tokens * per_token // holders,
        "states": 0 if on_gpu else states * _state_bytes(shape) // ranks,
    }


def _quantised(shape: ModelShape, recipe: Recipe) -> int:
    """Parameters of a server that take one byte each: the matrices inside the layers."""
    if recipe.serving.quantization is None:
        return 0
    return sum(
        math.prod(sizes)
        for name, sizes in expected_tensors(shape)
        if _kind(name) in ("attention", "mlp") and len(sizes) > 1
    )


def _kind(name: str) -> str:
    if "embed_tokens" in name:
        return "embedding"
    if "lm_head" in name:
        return "output layer"
    if "norm" in name:
        return "norms"
    if ".experts." in name:
        return "experts"
    return "attention" if ".self_attn." in name or ".linear_attn." in name else "mlp"


def _rank_parameters(shape: ModelShape, layout: Layout, *, is_critic: bool = False) -> int:
    """Parameters of the fullest rank."""
    return sum(_dense_and_experts(shape, layout, is_critic=is_critic))


def _attention_parameters(shape: ModelShape, layout: Layout) -> float:
    """Parameters of attention on a rank, where stages have equal parts of it."""
    layers = math.ceil(shape.num_layers / layout.pipeline) / shape.num_layers
    return layers * parameters_by_kind(shape)["attention"] / layout.tensor


def _rank_matrices(shape: ModelShape, layout: Layout) -> int:
    """Parameters of the matrices inside the layers of the fullest rank of a layout for Muon."""
    matrices = (
        math.prod(size)
        for name, size in expected_tensors(shape)
        if len(size) > 1 and not name.endswith("bias") and _kind(name) not in ("embedding", "output layer")
    )
    return round(math.ceil(shape.num_layers / layout.pipeline) / shape.num_layers * sum(matrices))


def _data_share(shape: ModelShape, layout: Layout, *, is_critic: bool = False) -> int:
    """The fullest rank's parameters divided among the ranks that hold the same."""
    return _share_of(*_dense_and_experts(shape, layout, is_critic=is_critic), layout)


def _share_of(dense: int, experts: int, layout: Layout) -> int:
    ranks = layout.data * layout.context
    return math.ceil(dense / ranks) + math.ceil(experts * layout.expert / (ranks * layout.tensor))


def _dense_and_experts(shape: ModelShape, layout: Layout, *, is_critic: bool) -> tuple[int, int]:
    """Parameters of the fullest rank: its layers, and the embedding or the output layer, whichever stage has
    more; and its experts, which are dealt whole.

    Of a critic, which has no output layer but a value per position.
    """
    counts = parameters_by_kind(shape)
    share = math.ceil(shape.num_layers / layout.pipeline) / shape.num_layers
    layers, experts = _fullest_stage(shape, layout)
    norms = round(share * counts["norms"])
    ends = counts["embedding"] + counts["output layer"]
    if layout.pipeline > 1:
        # The last stage of a tied model has a copy of the embedding in place of an output layer.
        ends = max(counts["embedding"], counts["output layer"])
    if is_critic:
        # The head stands where the final norm does, and weighs as little.
        ends, norms = counts["embedding"], norms + shape.hidden_size
    return layers + norms + ends // layout.tensor, experts


def _fullest_stage(shape: ModelShape, layout: Layout) -> tuple[int, int]:
    """Parameters of one rank of the stage that has most: matrices of its layers, and experts."""

    def of_layer(layer: int) -> tuple[int, int]:
        counts = parameters_by_kind(replace(shape.of_layer(layer), num_layers=1, dense_layers=()))
        # Divided by the tensor ranks below.
        copies = (layout.tensor - 1) * shape.whole_attention_weights()
        return counts["attention"] + counts["mlp"] + copies, counts["experts"]

    firsts = {shape.of_layer(layer): layer for layer in range(shape.num_layers)}
    kinds = {kind: of_layer(layer) for kind, layer in firsts.items()}
    size = math.ceil(shape.num_layers / (layout.pipeline * layout.virtual_stages))
    stages = [(0, 0)] * layout.pipeline
    for layer in range(shape.num_layers):
        stage, own = layer // size % layout.pipeline, kinds[shape.of_layer(layer)]
        stages[stage] = stages[stage][0] + own[0], stages[stage][1] + own[1]
    ranks = ((dense // layout.tensor, experts // layout.expert) for dense, experts in stages)
    return max(ranks, key=sum)


def _layer_floats(shape: ModelShape, tensor: int) -> tuple[float, float]:
    """Numbers that autograd holds per packed token and layer, as measured (hidden state is not divided); the
    second those of norms and feed-forward part, which trainer.recompute: selective computes again."""
    query = shape.num_heads * shape.head_size
    key_value = 2 * shape.num_kv_heads * shape.head_size
    full = 7 * query + 2 * key_value + (3 * query if shape.has_output_gate else 0)
    if (latent := shape.latent) is not None:
        vectors = latent.size + latent.rotated_size + (latent.query_size or 0)
        full = 4 * query + 3 * shape.num_heads * latent.value_size + 3 * vectors
    num_linear = len(shape.delta_layers)
    attention = (shape.attention_layers() * full + num_linear * _linear_attention(shape)) / shape.num_layers
    dense, sparse = 5 * shape.ffn_size, 0
    if shape.num_experts is not None:
        width = shape.experts_per_token * shape.expert_ffn_size + shape.shared_expert_size
        # Each chosen expert has a copy of the token, and its output is one more.
        sparse = 5 * width + 2 * shape.experts_per_token * shape.hidden_size
    num_sparse = shape.expert_layers()
    feed_forward = ((shape.num_layers - num_sparse) * dense + num_sparse * sparse) / shape.num_layers
    return 4 * shape.hidden_size + attention / tensor, 2 * shape.hidden_size + feed_forward / tensor


def _state_bytes(shape: ModelShape) -> int:
    """A server's state of one request, in float32, with the inputs of its convolutions that it keeps."""
    if (net := shape.delta_net) is None:
        return 0
    return 4 * len(shape.delta_layers) * (net.state_size() + (net.conv_width - 1) * net.num_channels())


def _linear_attention(shape: ModelShape) -> float:
    """Numbers that autograd holds per packed token in a layer of linear attention."""
    if (net := shape.delta_net) is None:
        return 0.0
    # A token's row in what each pair of a chunk of 64 tokens has: products, decays, the system.
    pairs = 64 * (2 * net.num_key_heads + 6 * net.num_value_heads)
    return 12 * net.num_channels() + pairs + 3 * net.state_size() / 64
