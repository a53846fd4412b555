"""The gate of a shared expert (Qwen2-MoE) on a CPU, where SGLang 0.5.23 has Triton's kernel alone."""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register(
        "sglang.kernels.ops.elementwise.elementwise.fused_gate_sigmoid_mul_add",
        _add_gated,
        HookType.REPLACE,
    )


def _add_gated(hidden_states, gate_weight, shared_output, final_hidden_states):
    """Adds sigmoid(hidden . gate) * shared to `final_hidden_states`, [N, H] each, in place."""
    gate = torch.sigmoid((hidden_states @ gate_weight.reshape(-1, 1)).float())
    final_hidden_states += (shared_output * gate).to(final_hidden_states.dtype)
