"""SGLang's linear layers and output layer on a CPU, by packed weights (packed_weights.py).

A version is published into the weights in place, so everything that writes weights forgets what was packed.
So do the digests that confirm a version: what serves it is packed from bytes that they covered.
"""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.serving.engine.cpu import packed_weights
from asyncrl.serving.kernels import rows

UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
WRITERS = (
    "update_weights_from_disk",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "load_weights_from_distributed",
    "begin_weight_update",
    "end_weight_update",
)
"""The methods of SGLang's updater that write weights."""
CHECKER = "sglang.srt.utils.weight_checker.WeightChecker"


def install(*, is_bitwise: bool) -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded. With `is_bitwise` the output
    layer is computed as trainers compute it."""
    # Before is enough, also where one fails midway: no step is computed meanwhile.
    for name in WRITERS:
        HookRegistry.register(f"{UPDATER}.{name}", _forget, HookType.BEFORE)
    HookRegistry.register(f"{CHECKER}.handle", _forget, HookType.BEFORE)
    unquantized = "sglang.srt.layers.quantization.unquant"
    for method in ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"):
        HookRegistry.register(f"{unquantized}.{method}.apply", _apply, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
        _bitwise_logits if is_bitwise else _logits,
        HookType.AROUND,
    )


def _forget(*_, **__):
    packed_weights.forget()


def _apply(original, method, layer, x, bias=None):
    weight = packed_weights.packed(layer.weight)
    if weight is None or x.dtype != layer.weight.dtype:
        return original(method, layer, x, bias)
    return weight.product(x, bias)


def _bitwise_logits(original, processor, hidden_states, lm_head, embedding_bias=None, *, out=None):
    weight = lm_head.weight[: processor.config.vocab_size]
    dtype = torch.float32 if processor.use_fp32_lm_head else weight.dtype
    return rows.linear(hidden_states.to(dtype), weight.to(dtype))


def _logits(original, processor, hidden_states, lm_head, embedding_bias=None, *, out=None):
    """The plain case of the original; the others have a precision or a method of their own."""
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

    weight = getattr(lm_head, "weight", None)
    is_plain = (
        isinstance(weight, torch.Tensor)
        and not hasattr(lm_head, "set_lora")
        and not should_apply_lm_head_quant_method(lm_head, getattr(lm_head, "quant_method", None))
        and not processor.use_fp32_lm_head
        and processor.rl_on_policy_target is None
        and hidden_states.dtype == weight.dtype
    )
    packed = packed_weights.packed(weight) if is_plain else None
    if packed is None:
        return original(processor, hidden_states, lm_head, embedding_bias, out=out)
    return packed.product(hidden_states)
