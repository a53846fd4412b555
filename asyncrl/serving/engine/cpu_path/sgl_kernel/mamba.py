"""Stand-ins for the kernels of linear attention, by the names under which SGLang 0.5.23 imports them."""

import torch

from asyncrl.serving.engine.cpu.delta_net import (
    convolve_prompts as causal_conv1d_fn_cpu,
)
from asyncrl.serving.engine.cpu.delta_net import (
    convolve_tokens as causal_conv1d_update_cpu,
)
from asyncrl.serving.engine.cpu.delta_net import (
    gates,
    run_tokens,
)
from asyncrl.serving.engine.cpu.delta_net import (
    run_prompts as chunk_gated_delta_rule_cpu,
)

__all__ = ["causal_conv1d_fn_cpu", "causal_conv1d_update_cpu", "chunk_gated_delta_rule_cpu"]

torch.ops.sgl_kernel.fused_gdn_gating_cpu = gates
torch.ops.sgl_kernel.fused_sigmoid_gating_delta_rule_update_cpu = run_tokens
