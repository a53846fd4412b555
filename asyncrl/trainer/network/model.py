"""The policy as Megatron-core GPTModel chunks, built from the shape of a Hugging Face folder and a layout.

Only the positions that predict a response token reach the output layer, and what leaves the last stage are
log-probs, not logits. The layer spec is chosen here: Transformer Engine's where it is installed next to CUDA,
else, and under adapters, the local one, whose experts are computed one after the other; both with our packed
attention.

Shapes: P packed tokens, C of them on this context-parallel rank, T response tokens, H hidden size.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from asyncrl.model.layout import ONE_PROCESS, Layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe.lora import Lora
from asyncrl.serving.kernels import rows as kernels
from asyncrl.system import machine
from asyncrl.trainer.network.adapted_layers import adapt, is_of_adapter
from asyncrl.trainer.network.bitwise import BitwiseNorm, BitwiseRotary, make_bitwise
from asyncrl.trainer.network.delta_net import GatedAttention, LinearAttention
from asyncrl.trainer.network.experts import skip_reduction, sum_over_copies
from asyncrl.trainer.network.latent_attention import latent_attention
from asyncrl.trainer.network.layer_attention import LayerAttention
from asyncrl.trainer.network.logprobs import output_logprobs
from asyncrl.trainer.network.multipliers import multiply_branches, multiply_embedding
from asyncrl.trainer.network.norms import has_own_norms, norm_kind, place_norms
from asyncrl.trainer.network.rotary import LayerRotary
from asyncrl.trainer.network.routers import freeze_routers
from asyncrl.trainer.packing.attention import PackedAttention, PackedRotary, own_tokens
from asyncrl.trainer.packing.attention_kernels import Heads, Limits
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.picked_rows import pick_rows

ACTIVATIONS = {
    "silu": F.silu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda gate: gate * torch.sigmoid(1.702 * gate),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PolicyModel(GPTModel):
    """One chunk of the policy's layers; the first one embeds, the last one gives log-probs.

    Of a micro-batch with kept sets it gives three [T]: log-probs over the kept tokens, entropies and
    log-probs over all tokens. Where a teacher told its likeliest tokens, the last is the mean of the
    log-probs of these by the teacher's probabilities.
    """

    shape: ModelShape
    unsampled: Tensor | None
    """[U] int64, ids that are never sampled."""
    float32_logits = False
    is_bitwise = False
    """Whether log-probs are, bit for bit, those of servers (model.bitwise_agreement)."""

    def forward(self, micro: MicroBatch, temperature: float) -> Tensor | tuple[Tensor, ...]:
        """Hidden states [C, 1, H] for the next stage; from the last one log-probs [T] and entropies [T]."""
        hidden: Tensor = super().forward(
            own_tokens(micro.tokens)[None], None, None, packed_seq_params=micro.sequences
        )
        if not self.post_process:
            return hidden
        # Each tensor rank's part of the vocabulary gives a part of the gradient: both sum it over the ranks.
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden)
        return self._logprobs(hidden.squeeze(1), micro, temperature)

    def _postprocess(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states

    def _logprobs(self, hidden: Tensor, micro: MicroBatch, temperature: float) -> tuple[Tensor, ...]:
        weight = self._output_weight()
        targets, kept, top = micro.targets[micro.distinct], micro.kept, micro.top
        own, predicting = own_predicting(micro.predicting[micro.distinct], len(hidden))
        if own is not None and kept is not None:
            kept = kept.of_rows(own, len(targets))
        if own is not None and top is not None:
            top = top.of_rows(own)
        # Prompts are often the longer half: their logits would be computed, stored and thrown away.
        values = output_logprobs(
            pick_rows(hidden, predicting),
            weight,
            targets if own is None else targets[own],
            temperature * self.shape.logits_divisor,
            vocab_size=self.shape.vocab_size,
            unsampled=self.unsampled,
            group=parallel_state.get_tensor_model_parallel_group(),
            float32_logits=self.float32_logits,
            is_bitwise=self.is_bitwise,
            kept=kept,
            top=top,
            cap=self.shape.logits_cap,
        )
        if own is not None:
            values = tuple(fill_in(torch.stack(values), own, len(targets)))
        if kept is not None:
            whole, entropies, log_masses, *means = values
            values = whole - log_masses, entropies, whole, *means
        return tuple(value.index_select(0, micro.copies) for value in values)

    def _output_weight(self) -> Tensor:
        """[vocabulary of the tensor rank, hidden], whole where weights are gathered during the pass.

        Megatron waits for a layer's weights in a hook before its forward pass. This layer's never comes.
        """
        for hook in self.output_layer._forward_pre_hooks.values():
            hook(self.output_layer, ())
        is_tied = self.share_embeddings_and_output_weights
        weight: Tensor = self.shared_embedding_or_output_weight() if is_tied else self.output_layer.weight
        return weight


def own_predicting(predicting: Tensor, num_tokens: int) -> tuple[Tensor | None, Tensor]:
    """(which of `predicting` this context rank computes, None for all; their places in its `num_tokens`)."""
    group = parallel_state.get_context_parallel_group()
    if group.size() == 1:
        return None, predicting
    first = group.rank() * num_tokens
    own = ((predicting >= first) & (predicting < first + num_tokens)).nonzero().squeeze(1)
    return own, predicting[own] - first


def fill_in(values: Tensor, own: Tensor, size: int) -> Tensor:
    """Each context rank's columns `own` of [K, size] -> all of them on every rank."""
    filled: Tensor = _FillIn.apply(values, own, size, parallel_state.get_context_parallel_group())
    return filled


class _FillIn(torch.autograd.Function):
    """Columns of ranks that own a part of T each -> all columns [K, T] on every rank.

    Every rank then computes the whole loss, sequence terms included, and each token's gradient reaches the
    one rank that owns it.
    """

    @staticmethod
    def forward(context: Any, values: Tensor, own: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
        context.save_for_backward(own)
        everything = values.new_zeros(len(values), size).index_copy_(1, own, values)
        dist.all_reduce(everything, group=group)
        return everything

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient.index_select(1, context.saved_tensors[0]), None, None, None


class Policy(torch.nn.ModuleList):
    """This rank's chunks in the order of their layers; one, except under virtual pipeline stages."""

    lora: Lora | None = None
    """The adapters that are trained in place of all weights."""

    def __iter__(self) -> Iterator[GPTModel]:
        return super().__iter__()

    @property
    def config(self) -> TransformerConfig:
        """The one that all chunks share."""
        return next(iter(self)).config

    def sharded_state_dict(self, prefix: str = "", *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """Megatron's description of every tensor, under the names that `load_state_dict` takes."""
        return {
            f"{prefix}{i}.{name}": value
            for i, chunk in enumerate(self)
            for name, value in chunk.sharded_state_dict("", *arguments, **keywords).items()
        }


def build_policy(
    shape: ModelShape,
    dtype: torch.dtype,
    layout: Layout = ONE_PROCESS,
    *,
    recompute: str = "none",
    kind: type[GPTModel] = PolicyModel,
    unsampled: Unsampled | None = None,
    float32_logits: bool = False,
    is_bitwise: bool = False,
    lora: Lora | None = None,
    has_frozen_routers: bool = False,
) -> Policy:
    """This rank's part of a model of `shape` with random weights, its chunks of `kind`, which samples all
    tokens but `unsampled`. With `lora` adapters of zeros, which alone are trained."""
    config = transformer_config(shape, dtype, layout, recompute=recompute, has_adapters=lora is not None)
    if is_bitwise:
        config.activation_func = kernels.silu
    stages = [None] if layout.virtual_stages == 1 else list(range(layout.virtual_stages))
    policy = Policy([_build_chunk(shape, config, layout, stage, kind, is_bitwise, lora) for stage in stages])
    policy.lora = lora
    if has_frozen_routers:
        freeze_routers(policy)
    ids = unsampled.ids if unsampled is not None else ()
    for chunk in policy:
        chunk.unsampled = torch.tensor(ids, device=device()) if ids else None
        chunk.float32_logits = float32_logits
        chunk.is_bitwise = is_bitwise
    return policy


def build_model(shape: ModelShape, dtype: torch.dtype) -> PolicyModel:
    """A whole model of `shape` in one process, with random weights."""
    model: PolicyModel
    (model,) = build_policy(shape, dtype)
    return model


def _build_chunk(
    shape: ModelShape,
    config: TransformerConfig,
    layout: Layout,
    stage: int | None,
    kind: type[GPTModel],
    is_bitwise: bool,
    lora: Lora | None,
) -> GPTModel:
    place = {"ignore_virtual": False, "vp_stage": stage}
    # Megatron-core 0.19 builds no norm of queries and keys without it.
    config.qk_layernorm = shape.has_qk_norm or shape.has_wide_qk_norm
    model = kind(
        config,
        block_spec(config, shape, stage, is_bitwise=is_bitwise, lora=lora),
        vocab_size=layout.padded_vocabulary(shape.vocab_size),
        max_sequence_length=shape.max_positions,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=shape.is_tied,
        parallel_output=True,
        pre_process=parallel_state.is_pipeline_first_stage(**place),
        post_process=parallel_state.is_pipeline_last_stage(**place),
        vp_stage=stage,
    )
    # In training it means norms of single heads, whose gradients are summed over tensor ranks: a wide one has
    # the whole gradient of its own heads.
    config.qk_layernorm = shape.has_qk_norm
    model.shape = shape
    model.rotary_pos_emb = _build_rotary(shape, config, is_bitwise)
    if model.pre_process and shape.embedding_multiplier != 1.0:
        is_rounded = shape.is_embedding_multiplier_rounded
        multiply_embedding(model, shape.embedding_multiplier, is_rounded=is_rounded)
    if lora is not None:
        _train_adapters_alone(model)
    if layout.tensor > 1:
        sum_over_copies(model)
    if shape.has_linear_biases:
        skip_reduction(model)
    # torch's RMSNorm, unlike Megatron's layers, looks neither at params_dtype nor at the device.
    return model.to(device=device(), dtype=config.params_dtype)


def _build_rotary(shape: ModelShape, config: TransformerConfig, is_bitwise: bool) -> torch.nn.Module:
    if shape.has_layer_kinds():
        assert not is_bitwise, f"{shape.architecture} with model.bitwise_agreement"
        return LayerRotary(shape)
    rotary = (BitwiseRotary if is_bitwise else PackedRotary)(
        shape.head_size,
        rotary_percent=1.0,
        rotary_base=shape.rope_theta,
        rope_scaling=shape.rope_scaling_factor is not None,
        rope_scaling_factor=shape.rope_scaling_factor or 1.0,
        use_cpu_initialization=config.use_cpu_initialization,
    )
    if is_bitwise:
        rotary.shape = shape
    return rotary


def _train_adapters_alone(model: GPTModel) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_of_adapter(name))
    if model.pre_process and model.config.recompute_granularity == "full":
        # What is computed again has a gradient only if something that it is given has one.
        model.embedding.register_forward_hook(
            lambda _, __, hidden: hidden.requires_grad_(torch.is_grad_enabled())
        )


def device() -> torch.device:
    """Where this process computes."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def rank_heads(shape: ModelShape, layout: Layout, dtype: torch.dtype) -> Heads:
    """The attention heads that this rank computes: under context parallelism fewer, but for all tokens."""
    kv_count = shape.num_kv_heads // layout.tensor
    return Heads(
        count=shape.num_heads // layout.tensor // layout.context,
        # Where there are fewer than ranks, each rank has one that others have too.
        kv_count=kv_count // math.gcd(kv_count, layout.context),
        size=max(shape.head_size, shape.value_size),
        dtype=dtype,
        limits=Limits(shape.window if shape.sliding_layers else None, shape.attention_cap, shape.has_sinks),
    )


def half_device(dtype: torch.dtype) -> str | None:
    """Name of the GPU where this process computes in 16 bits, bfloat16 and float16 as fast as each other;
    None for float32 or a CPU."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() and dtype.itemsize == 2 else None


def block_spec(
    config: TransformerConfig,
    shape: ModelShape,
    stage: int | None = None,
    *,
    is_bitwise: bool = False,
    lora: Lora | None = None,
) -> TransformerBlockSubmodules:
    """The layers of this rank's chunk."""
    first = get_transformer_layer_offset(config, vp_stage=stage)
    numbers = range(first, first + get_num_layers_to_build(config, vp_stage=stage))
    shapes = [shape.of_layer(number) for number in numbers]
    specs = {each: _layer_spec(config, each, is_bitwise=is_bitwise, lora=lora) for each in set(shapes)}
    layers = [specs[each][0] for each in shapes]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=specs[shapes[0]][1])


def _layer_spec(
    config: TransformerConfig, shape: ModelShape, *, is_bitwise: bool, lora: Lora | None
) -> tuple[ModuleSpec, type[torch.nn.Module]]:
    """A layer of a model whose layers are all of `shape`, and its norms."""
    kinds = {
        "num_experts": shape.num_experts,
        "moe_grouped_gemm": config.moe_grouped_gemm,
        "multi_latent_attention": shape.latent is not None,
    }
    engine = None
    if has_transformer_engine() and lora is None:
        from megatron.core.extensions.transformer_engine import TENorm

        norm = TENorm
        engine = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm, **kinds)
    if engine is not None and not has_own_norms(shape):
        layer = engine
    else:
        norm = BitwiseNorm if is_bitwise else norm_kind(shape)
        layer = get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm, normalization=config.normalization, **kinds
        )
        place_norms(layer.submodules, config, shape, norm)
        if lora is not None:
            adapt(layer, lora)
        if engine is not None and shape.num_experts is not None:
            # Grouped experts are Transformer Engine's; their norm lies outside of them.
            layer.submodules.mlp = engine.submodules.mlp
    attention = layer.submodules.self_attention
    if shape.latent is not None:
        layer.submodules.self_attention = latent_attention(attention, shape, norm)
    else:
        attention.submodules.core_attention = (
            functools.partial(LayerAttention, shape=shape) if shape.has_layer_kinds() else PackedAttention
        )
    if shape.has_output_gate:
        attention.module = GatedAttention
    if shape.delta_layers:
        layer.submodules.self_attention = ModuleSpec(LinearAttention, params={"shape": shape})
    if shape.residual_multiplier != 1.0:
        multiply_branches(layer.submodules, shape.residual_multiplier)
    if is_bitwise:
        make_bitwise(layer.submodules)
    return layer, norm


def has_transformer_engine() -> bool:
    return torch.cuda.is_available() and machine.has_transformer_engine()


def transformer_config(
    shape: ModelShape,
    dtype: torch.dtype,
    layout: Layout = ONE_PROCESS,
    *,
    recompute: str = "none",
    has_adapters: bool = False,
) -> TransformerConfig:
    has_engine = has_transformer_engine()
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_kv_heads,
        kv_channels=shape.head_size,
        ffn_hidden_size=shape.ffn_size,
        layernorm_epsilon=shape.norm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=shape.has_qk_norm,
        gated_linear_unit=True,
        activation_func=ACTIVATIONS[shape.activation],
        activation_func_clamp_value=shape.gate_limit,
        glu_linear_offset=shape.gate_offset,
        add_bias_linear=shape.has_linear_biases,
        add_qkv_bias=shape.has_qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        softmax_scale=shape.attention_scale,
        attention_output_gate=shape.has_output_gate,
        # With a list Megatron numbers the layers in a checkpoint; else it stacks them.
        linear_attention_freq=[int(i in shape.delta_layers) for i in range(shape.num_layers)]
        if shape.delta_layers
        else None,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        # Losses are sums and Megatron divides by the global token count at the end. Its other mode divides
        # each micro-batch by its own count: a token in a short micro-batch would weigh more.
        calculate_per_token_loss=True,
        use_cpu_initialization=not torch.cuda.is_available(),
        # The fused kernels of these exist for CUDA only.
        masked_softmax_fusion=False,
        # apex's kernel adds to the float32 gradient directly; Megatron's own layers have no other.
        gradient_accumulation_fusion=torch.cuda.is_available() and machine.has_fused_weight_gradients(),
        bias_activation_fusion=torch.cuda.is_available() and shape.activation == "silu",
        bias_dropout_fusion=False,
        apply_rope_fusion=has_engine,
        persist_layer_norm=False,
        # Whether the backward pass of embeddings may add in any order.
        deterministic_mode=torch.are_deterministic_algorithms_enabled(),
        **_parallel_settings(layout),
        # Grouped experts are one matrix to Transformer Engine: no layers that adapters could be put into.
        **_expert_settings(shape, dtype, has_engine and not has_adapters),
        **_recompute_settings(recompute),
    )


def _parallel_settings(layout: Layout) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "sequence_parallel": layout.is_sequence_parallel,
        # Packs differ in length, so stages tell each other the size of what they send.
        "variable_seq_lengths": layout.pipeline > 1,
        # Megatron insists on it with variable lengths, with or without experts.
        "moe_token_dispatcher_type": "alltoall",
    }
    if layout.virtual_stages > 1:
        settings["virtual_pipeline_model_parallel_size"] = layout.virtual_stages
        # Batched messages get mixed up where the stage before is also the one after: wrong numbers, no error.
        settings |= {"overlap_p2p_comm": True, "batch_p2p_comm": False}
    return settings


def _expert_settings(shape: ModelShape, dtype: torch.dtype, has_engine: bool) -> dict[str, Any]:
    if shape.num_experts is None:
        return {}
    return {
        "num_moe_experts": shape.num_experts,
        "moe_router_topk": shape.experts_per_token,
        "moe_ffn_hidden_size": shape.expert_ffn_size,
        # Softmax over the chosen experts is softmax over all of them, normalized over the chosen.
        "moe_router_pre_softmax": not shape.are_expert_weights_normalised,
        # Which experts get a token is the policy's own choice: no loss pushes it towards balance.
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_router_dtype": None if dtype is torch.float32 else "fp32",
        "moe_grouped_gemm": has_engine,
        "expert_tensor_parallel_size": 1,
        **_further_expert_settings(shape),
    }


def _further_expert_settings(shape: ModelShape) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if shape.shared_expert_size:
        settings |= {
            "moe_shared_expert_intermediate_size": shape.shared_expert_size,
            "moe_shared_expert_gate": shape.has_shared_expert_gate,
        }
    if shape.router_scores == "sigmoid":
        settings |= {
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": shape.has_router_bias,
            # Routers are changed after an optimizer step, if at all, and never within Megatron's.
            "moe_router_bias_update_rate": 0.0,
            "moe_router_pre_softmax": False,
        }
    if shape.expert_groups > 1:
        settings |= {
            "moe_router_num_groups": shape.expert_groups,
            "moe_router_group_topk": shape.groups_per_token,
        }
    if shape.router_scale != 1.0:
        settings["moe_router_topk_scaling_factor"] = shape.router_scale
    if shape.dense_layers:
        # With a list Megatron numbers the layers in a checkpoint; with 1 it stacks them.
        settings["moe_layer_freq"] = [int(i not in shape.dense_layers) for i in range(shape.num_layers)]
    return settings


def _recompute_settings(recompute: str) -> dict[str, Any]:
    if recompute == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return {"recompute_granularity": "selective"} if recompute == "selective" else {}
