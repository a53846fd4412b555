"""Megatron's settings of a model: its sizes, its layout, what is computed again."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
from megatron.core.transformer.transformer_config import TransformerConfig

from asyncrl.model.layout import ONE_PROCESS, Layout
from asyncrl.model.shape import ModelShape
from asyncrl.system import machine
from asyncrl.trainer.network.layer_specs import has_transformer_engine

ACTIVATIONS = {
    "silu": F.silu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda gate: gate * torch.sigmoid(1.702 * gate),
}


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
    if recompute == "none":
        return {}
    # Megatron's default, False, is not None: it would ask Transformer Engine for FP8, which may not be there.
    CheckpointWithoutOutput.__init__.__defaults__ = (None,)
    # Attention kernels store no scores: to compute these again would save nothing.
    return {"recompute_granularity": "selective", "recompute_modules": ["layernorm", "mlp", "moe"]}
