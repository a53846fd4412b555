"""The numbers and switches that tell decoder-only transformers apart, whatever their family."""

from dataclasses import dataclass, replace
from typing import Literal

from asyncrl.model.rotary import Rotation


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Linear attention by the gated delta rule (Yang et al. 2024, arXiv 2412.06464).

    Each value head has a state of key_head_size x value_head_size numbers in place of keys and values of all
    tokens.
    """

    num_key_heads: int
    """Heads of queries and keys; each serves num_value_heads / num_key_heads value heads."""
    num_value_heads: int
    key_head_size: int
    value_head_size: int
    conv_width: int
    """Tokens of the causal convolution over queries, keys and values, its own included."""

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_head_size

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_head_size

    def num_channels(self) -> int:
        """Channels of the convolution."""
        return 2 * self.key_size + self.value_size

    def state_size(self) -> int:
        """Numbers of the states of all heads."""
        return self.num_value_heads * self.key_head_size * self.value_head_size


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA: DeepSeek-AI 2024, arXiv 2405.04434): keys and values of all heads are
    made of one short vector per token. Each norm before a product with these vectors has its own epsilon."""

    size: int
    """Numbers of the vector that keys and values are made of."""
    query_size: int | None
    """Numbers of the vector that queries are made of; None: they are made of the hidden state."""
    rotated_size: int
    """Numbers at the end of each head that are rotated; those of keys are the same for all heads."""
    value_size: int
    """Head size of values."""
    norm_epsilon: float = 1e-6


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer: grouped-query attention, RMSNorm, SwiGLU or experts, rotary positions."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    rope_theta: float
    rope_scaling_factor: float | None
    """Llama 3 scaling; None: plain rotary positions."""
    norm_epsilon: float
    is_tied: bool
    """The output layer is the embedding."""
    has_qkv_bias: bool = False
    has_linear_biases: bool = False
    """Attention's output, routers and experts have biases, too (gpt-oss)."""
    has_qk_norm: bool = False
    num_experts: int | None = None
    """Feed-forward networks in each layer, of which a router chooses; None: one, without a router."""
    experts_per_token: int = 0
    expert_ffn_size: int = 0
    are_expert_weights_normalised: bool = True
    """The router's probabilities of the chosen experts are divided by their sum."""
    dense_layers: tuple[int, ...] = ()
    """Layers, counted from 0, that have one feed-forward network of `ffn_size` in place of experts."""
    shared_expert_size: int = 0
    """Width of the feed-forward network that each token passes beside the experts of its own; 0: none."""
    has_shared_expert_gate: bool = False
    """Its output is multiplied by the sigmoid of a product with the token."""
    router_scores: Literal["softmax", "sigmoid"] = "softmax"
    """The scores that a router makes of its logits. Sigmoids are divided by the sum of the chosen ones."""
    has_router_bias: bool = False
    """The router chooses by its scores plus a float32 number per expert, and weights by the scores alone
    (auxiliary-loss-free balancing: Wang et al. 2024, arXiv 2408.15664)."""
    router_scale: float = 1.0
    """Factor of the weights of the chosen experts."""
    expert_groups: int = 1
    """Groups of neighboring experts. A token's experts are of its best groups, by the sum of the best
    experts_per_token / groups_per_token scores in each (DeepSeek-V3: arXiv 2412.19437)."""
    groups_per_token: int = 1

    embedding_multiplier: float = 1.0
    """Factor of the embedding's output (Granite)."""
    residual_multiplier: float = 1.0
    """Factor of each output of attention and of the feed-forward network before it is added (Granite)."""
    attention_scale: float | None = None
    """Factor of the products of queries and keys; None: 1 / sqrt(head_size)."""
    logits_divisor: float = 1.0
    """Divisor of the logits, before the temperature (Granite)."""

    rotation: Rotation | None = None
    """Rotary positions, where they are others than `rope_theta` and `rope_scaling_factor` say."""
    sliding_rotation: Rotation | None = None
    """Rotary positions of sliding layers, where these have others (Gemma 3, OLMo 3)."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers, counted from 0, without rotary positions (SmolLM3)."""

    norm_places: Literal["before", "behind", "both"] = "before"
    """Where a layer has norms: before attention and feed-forward network, or behind them (OLMo 2), or both
    (Gemma, GLM-4)."""
    norms_add_one: bool = False
    """Norms multiply by 1 + weight (Gemma)."""
    has_wide_qk_norm: bool = False
    """Queries and keys have a norm over all heads together (OLMo 2); `has_qk_norm` is one of each head."""

    latent: LatentAttention | None = None
    """Keys and values made of one vector per token; None: each head has its own, by `num_kv_heads`."""

    window: int | None = None
    """Tokens that a token of a sliding layer looks at, itself included."""
    sliding_layers: tuple[int, ...] = ()
    """Layers, counted from 0, that have the window."""
    attention_cap: float | None = None
    """c of scores c tanh(score / c), in each layer (Gemma 2)."""
    logits_cap: float | None = None
    """c of logits c tanh(logit / c), before the temperature (Gemma 2)."""
    has_sinks: bool = False
    """Each head has a learned logit in the denominator of its softmax, with no value (gpt-oss)."""
    activation: Literal["silu", "gelu_tanh", "quick_gelu"] = "silu"
    """Activation of the gate of the feed-forward network; the last is x sigmoid(1.702 x)."""
    gate_limit: float | None = None
    """Gates are clamped above at it, and what they multiply on both sides (gpt-oss)."""
    gate_offset: float = 0.0
    """Added to what a gate multiplies."""
    is_embedding_multiplier_rounded: bool = False
    """Whether the multiplier is rounded to the weights' type first (Gemma)."""

    delta_net: DeltaNet | None = None
    delta_layers: tuple[int, ...] = ()
    """Layers, counted from 0, that have it in place of attention (Qwen3-Next)."""
    has_output_gate: bool = False
    """The output of attention is multiplied by the sigmoid of as many numbers, which each head computes as it
    does its query (Qwen3-Next)."""

    @property
    def value_size(self) -> int:
        """Head size of values."""
        return self.head_size if self.latent is None else self.latent.value_size

    @property
    def rotary_size(self) -> int:
        """Numbers of a head that have positions, of which a share may be rotated."""
        return self.head_size if self.latent is None else self.latent.rotated_size

    def cached_numbers(self) -> int:
        """Numbers that a server's cache holds per token and layer."""
        if self.latent is not None:
            return self.latent.size + self.latent.rotated_size
        return 2 * self.num_kv_heads * self.head_size

    def whole_attention_weights(self) -> int:
        """Weights of a layer's attention that each tensor-parallel rank has whole."""
        if self.latent is None:
            return 0
        return self.hidden_size * (self.cached_numbers() + (self.latent.query_size or 0))

    def attention_weights(self) -> int:
        """Weights of the matrices of a layer's attention."""
        hidden, heads, latent = self.hidden_size, self.num_heads, self.latent
        if latent is None:
            gates = heads if self.has_output_gate else 0
            return hidden * self.head_size * (2 * (heads + self.num_kv_heads) + gates)
        of_queries = (latent.query_size or hidden) * heads * self.head_size
        of_keys = heads * (self.head_size - latent.rotated_size)
        of_values = heads * latent.value_size
        return (
            self.whole_attention_weights()
            + of_queries
            + latent.size * (of_keys + of_values)
            + of_values * hidden
        )

    def of_layer(self, layer: int) -> "ModelShape":
        """The shape of a model whose layers are all like this one."""
        shape = replace(self, num_experts=None) if layer in self.dense_layers else self
        if self.delta_net is None:
            return shape
        are_all = layer in self.delta_layers
        return replace(shape, delta_layers=tuple(range(self.num_layers)) if are_all else ())

    def expert_layers(self) -> int:
        """Layers that have experts."""
        return 0 if self.num_experts is None else self.num_layers - len(self.dense_layers)

    def attention_layers(self) -> int:
        """Layers that have keys and values of all tokens."""
        return self.num_layers - len(self.delta_layers)

    def has_layer_kinds(self) -> bool:
        """Whether attention is more than plain rotary positions and causality, the same in each layer."""
        has_rotation = self.rotation is not None or bool(self.unrotated_layers)
        has_scores = self.has_sinks or self.attention_cap is not None
        return has_rotation or bool(self.sliding_layers) or has_scores

    def is_plain(self) -> bool:
        """Whether it is no more than a Llama with biases or norms of queries and keys, or with experts."""
        has_norms = self.norm_places == "before" and not self.norms_add_one and not self.has_wide_qk_norm
        has_ends = self.logits_cap is None and self.activation == "silu" and not self.has_linear_biases
        is_attention = self.delta_net is None and not self.has_output_gate and not self.has_layer_kinds()
        return has_norms and has_ends and is_attention and not self.has_multipliers()

    def has_multipliers(self) -> bool:
        multipliers = (self.embedding_multiplier, self.residual_multiplier, self.logits_divisor)
        return multipliers != (1.0, 1.0, 1.0) or self.attention_scale is not None
