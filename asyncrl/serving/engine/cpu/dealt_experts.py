"""Experts of other ranks (serving.expert_parallel_size) on a CPU, where SGLang's plain loop knows none.

SGLang 0.5.23 gives a choice that belongs to another rank the number -1, which its kernels for GPUs skip. Here
the loop gets each choice of this rank as a token of its own. The ranks' outputs are summed afterwards."""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.layers.moe.fused_moe_native.moe_forward_native", _compute_own, HookType.AROUND
    )


def _compute_own(original, layer, x, topk_output, moe_runner_config):
    """[N, H] -> the sum of what this rank's experts give for each token, [N, H]."""
    if layer.moe_ep_size == 1:
        return original(layer, x, topk_output, moe_runner_config)
    own = topk_output.topk_ids >= 0
    output, (tokens, _) = x.new_zeros(x.shape), own.nonzero(as_tuple=True)
    if len(tokens):
        choices = topk_output._replace(
            topk_ids=topk_output.topk_ids[own][:, None], topk_weights=topk_output.topk_weights[own][:, None]
        )
        output.index_add_(0, tokens, original(layer, x[tokens], choices, moe_runner_config))
    return output
