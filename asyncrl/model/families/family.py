"""Everything about a family of models: what its config.json says, and its tensors under both their names.

A family is one `Family`, listed in `FAMILIES` of this package. What the trainer builds depends on the
`ModelShape` alone, never on the family. No torch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.model.rotary import USUAL_KINDS
from asyncrl.model.shape import ModelShape
from asyncrl.recipe.sections.model import TARGETS

Config = Mapping[str, Any]
"""A config.json."""
Tensors = Iterator[tuple[str, tuple[int, ...]]]
"""(Hugging Face name, size)."""

FUSED = {"qkv_proj": 3, "gate_up_proj": 2}
"""Matrices that Hugging Face's folders too keep in one -> of how many they are made, one above the other."""

LAYER_NAMES: dict[str, tuple[str, ...]] = {
    "input_layernorm.weight": ("input_layernorm.weight",),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight",),
    # Transformer Engine computes these two norms inside of the layer after them.
    "self_attention.linear_qkv.layer_norm_weight": ("input_layernorm.weight",),
    "mlp.linear_fc1.layer_norm_weight": ("post_attention_layernorm.weight",),
    "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight",),
    "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight",),
    "self_attention.linear_qkv.weight": tuple(f"self_attn.{x}_proj.weight" for x in "qkv"),
    "self_attention.linear_qkv.bias": tuple(f"self_attn.{x}_proj.bias" for x in "qkv"),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight",),
    "mlp.linear_fc1.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight",),
    "mlp.router.weight": ("mlp.gate.weight",),
    "mlp.experts.linear_fc1.weight": ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight"),
    "mlp.experts.linear_fc2.weight": ("mlp.experts.{}.down_proj.weight",),
    "mlp.shared_experts.linear_fc1.weight": tuple(
        f"mlp.shared_expert.{x}_proj.weight" for x in ("gate", "up")
    ),
    "mlp.shared_experts.linear_fc2.weight": ("mlp.shared_expert.down_proj.weight",),
    "mlp.shared_experts.gate_weight": ("mlp.shared_expert_gate.weight",),
}
"""Megatron-core's name in a layer -> Hugging Face's names of its parts; an expert's number is in braces."""


SHARED_EXPERT = "mlp.shared_expert."
EXPERT_BIAS = "mlp.gate.e_score_correction_bias"


def feed_forward(shape: ModelShape, *, shared: str = SHARED_EXPERT) -> Tensors:
    """One SwiGLU, or experts with their router; `shared` begins the names of the shared expert."""
    if shape.num_experts is None:
        yield from swiglu("mlp.", shape.hidden_size, shape.ffn_size)
        return
    yield "mlp.gate.weight", (shape.num_experts, shape.hidden_size)
    if shape.has_router_bias:
        yield EXPERT_BIAS, (shape.num_experts,)
    for expert in range(shape.num_experts):
        yield from swiglu(f"mlp.experts.{expert}.", shape.hidden_size, shape.expert_ffn_size)
    if shape.shared_expert_size:
        yield from swiglu(shared, shape.hidden_size, shape.shared_expert_size)
    if shape.has_shared_expert_gate:
        yield "mlp.shared_expert_gate.weight", (1, shape.hidden_size)


def attention(shape: ModelShape) -> Tensors:
    """Queries, keys and values in a matrix each."""
    queries, keys = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    with_gates = queries * (2 if shape.has_output_gate else 1)
    for part, size in (("q", with_gates), ("k", keys), ("v", keys)):
        yield f"self_attn.{part}_proj.weight", (size, shape.hidden_size)
        if shape.has_qkv_bias:
            yield f"self_attn.{part}_proj.bias", (size,)
    yield "self_attn.o_proj.weight", (shape.hidden_size, queries)
    if shape.has_qk_norm:
        yield "self_attn.q_norm.weight", (shape.head_size,)
        yield "self_attn.k_norm.weight", (shape.head_size,)
    if shape.has_wide_qk_norm:
        yield "self_attn.q_norm.weight", (queries,)
        yield "self_attn.k_norm.weight", (keys,)


def swiglu(prefix: str, hidden: int, width: int) -> Tensors:
    yield prefix + "gate_proj.weight", (width, hidden)
    yield prefix + "up_proj.weight", (width, hidden)
    yield prefix + "down_proj.weight", (hidden, width)


def fused_swiglu(shape: ModelShape) -> Tensors:
    """Gate and up in one matrix."""
    yield "mlp.gate_up_proj.weight", (2 * shape.ffn_size, shape.hidden_size)
    yield "mlp.down_proj.weight", (shape.hidden_size, shape.ffn_size)


def reads_nothing(config: Config) -> dict[str, Any]:
    return {}


def experts(config: Config, count: str, width: str = "moe_intermediate_size") -> dict[str, Any]:
    """Fields of experts; `count` and `width` are the keys of their number and of their size."""
    return {
        "num_experts": config[count],
        "experts_per_token": config["num_experts_per_tok"],
        "expert_ffn_size": config[width],
    }


def sliding_layers(config: Config, *, default: Callable[[int], bool]) -> tuple[int, ...]:
    """Layers, counted from 0, of kind sliding_attention; by `default` where config.json does not say."""
    num_layers = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if kinds:
        return tuple(i for i in range(num_layers) if kinds[i] == "sliding_attention")
    return tuple(i for i in range(num_layers) if default(i))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    architecture: str
    """As `architectures` of config.json names it."""
    model_type: str
    """By it transformers chooses the class that it computes with, whatever `architectures` says."""
    models: str
    """Models that belong to it, for docs/models.md."""
    read: Callable[[Config], dict[str, Any]] = reads_nothing
    """Fields of `ModelShape` that not every config.json has. Raises KeyError where one is missing."""
    settings: frozenset[str] = frozenset()
    """Keys that `read` reads, and sliding_window where it is the window."""
    ignored: frozenset[str] = frozenset()
    """Keys without effect here."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys that have one accepted value."""
    has_window: bool = False
    """Whether `sliding_window` is a window of every layer; null is none."""
    layer_types: frozenset[str] = frozenset(("full_attention",))
    """The kinds of layers that it may have."""
    rope_theta: float = 10000.0
    """Base of rotary positions where config.json has none."""
    sliding_rope_theta: float | None = None
    """Base of sliding layers where config.json has none; None: these are rotated as all others."""
    serves_old_rotary_keys: bool = False
    """Whether servers read rope_theta and rope_scaling (transformers 4), and no rope_parameters."""
    implied: Callable[[Config], dict[str, Any]] = reads_nothing
    """Further keys that servers need, from the keys that transformers 5 writes in their place."""
    rope_kinds: tuple[str, ...] = USUAL_KINDS
    """Kinds of rotary positions that transformers and servers compute alike."""
    original_positions: int | None = None
    """`original_max_position_embeddings` where config.json has none, if it stands beside the rotary keys."""
    rotated_share: float = 1.0
    """Share of each head that is rotated where config.json does not say (partial_rotary_factor)."""
    is_rotation_interleaved: bool = False
    """Whether neighbors in a head turn together."""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Those of a layer over the hidden state."""
    attention: Callable[[ModelShape], Tensors] = attention
    feed_forward: Callable[[ModelShape], Tensors] = feed_forward
    """Tensors of a layer, named as inside the layer."""
    layer_names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: LAYER_NAMES)
    unread: str | None = None
    """Pattern of tensors that a folder may have and transformers does not read."""
    unquantized: str = "Use the original."
    """Advice where weights are quantized."""
    adapter_targets: tuple[str, ...] = TARGETS
    """Those of model.lora.targets that name matrices of it."""

    def layer_tensors(self, shape: ModelShape) -> Tensors:
        """Tensors of one layer, named as inside the layer."""
        yield from ((f"{name}.weight", (shape.hidden_size,)) for name in self.norms)
        yield from self.attention(shape)
        yield from self.feed_forward(shape)

    def completed(self, config: Config) -> dict[str, Any]:
        """`config` with the keys that it lacks and the rest of it implies. Trainer and servers read this.

        transformers 5 leaves out keys for which SGLang's models have no default. A key with one accepted
        value has that value.
        """
        implied: dict[str, Any] = {key: values[0] for key, values in self.only.items()}
        implied |= self.implied(config)
        if self.serves_old_rotary_keys:
            implied |= _old_rotary_keys(config, self.rope_theta)
        return {**config, **{key: value for key, value in implied.items() if config.get(key) is None}}


def _old_rotary_keys(config: Config, theta: float) -> dict[str, Any]:
    """rope_theta and rope_scaling of full layers, from rope_parameters."""
    named: dict[str, Any] = config.get("rope_parameters") or {}
    full: dict[str, Any] = named.get("full_attention", named)
    scaling = {"rope_type": "default", "rope_theta": theta} | full
    keys = {"rope_theta": scaling.pop("rope_theta")}
    return keys if scaling["rope_type"] == "default" else keys | {"rope_scaling": scaling}
