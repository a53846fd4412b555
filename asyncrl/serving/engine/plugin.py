"""The entry point that SGLang calls in each of its processes (group "sglang.srt.plugins" in pyproject.toml).

Registers hooks and names only, and imports little: the processes that do not use a hook pay for it too.
"""

import atexit
import gc

CPU_ATTENTION = "asyncrl_cpu"


def load() -> None:
    """Registers what each file of hooks/ has, and on a CPU what those of cpu/ have, and its attention. With
    ASYNCRL_BITWISE_AGREEMENT the kernels that trainers share take the place of packed weights and of the
    shorter ways to norm and rotate."""
    import torch

    from asyncrl.serving.engine.hooks import (
        access,
        completed_models,
        endings,
        loaded_weights,
        log_probs,
        prompt_sharing,
        streamed_tokens,
        weight_updates,
    )

    # Hooks of one target apply in this order.
    hooks = [access.hooks(), completed_models.hooks(), loaded_weights.hooks(), weight_updates.hooks()]
    hooks += [streamed_tokens.hooks(), endings.hooks(), prompt_sharing.hooks(), log_probs.hooks()]
    if not torch.cuda.is_available():
        from asyncrl.serving.engine.cpu import delta_net, layers, processes, products, sampler

        hooks += [part.hooks() for part in (processes, sampler, products, layers, delta_net)]
        hooks += [_cpu_attention_hooks()]
    for each in hooks:
        register(each)
    # Python would collect garbage as a process ends.
    atexit.register(gc.freeze)


def register(hooks) -> None:
    """Registers (target, function, "before", "after", "around" or "replace"); SGLang applies them when all
    plugins are loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, function, place in hooks:
        HookRegistry.register(target, function, HookType(place))


def _cpu_attention_hooks():
    """Makes the attention known to SGLang."""
    from sglang.srt.arg_groups.choices import add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    add_attention_backend_choices([CPU_ATTENTION])
    register_attention_backend(CPU_ATTENTION)(_make_cpu_attention)
    return [
        # SGLang asks for the name "torch_native" here to learn that there is no Triton.
        ("sglang.srt.mem_cache.allocation.get_last_loc", _last_slots, "replace"),
        ("sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments", _adjust, "around"),
    ]


def _adjust(original, server_args):
    """SGLang refuses gpt-oss with a backend that it does not know to have sinks: here ours is called by the
    name of one that has."""
    from sglang.srt.arg_groups import model_hook

    backends_of = model_hook.attention_backends_of
    model_hook.attention_backends_of = lambda cfg: tuple(
        "intel_amx" if name == CPU_ATTENTION else name for name in backends_of(cfg)
    )
    try:
        return original(server_args)
    finally:
        model_hook.attention_backends_of = backends_of


def _make_cpu_attention(model_runner):
    from asyncrl.model.supported import is_bitwise
    from asyncrl.serving.engine.cpu import plain_decoder
    from asyncrl.serving.engine.cpu.attention import BatchedAttention
    from asyncrl.serving.engine.cpu.layers import choose_cached

    if is_bitwise():
        return _make_bitwise_attention(model_runner)
    backend = BatchedAttention(model_runner)
    choose_cached(CPU_ATTENTION)
    plain_decoder.install(model_runner.model, backend)
    return backend


def _make_bitwise_attention(model_runner):
    from asyncrl.serving.engine.cpu import bitwise

    # Before: it refuses models whose parts the attention does not know.
    bitwise.check(model_runner.model)
    backend = bitwise.BitwiseAttention(model_runner)
    bitwise.install(model_runner.model, backend)
    return backend


def _last_slots(req_to_token, req_pool_indices_tensor, prefix_lens_tensor):
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(req_to_token, req_pool_indices_tensor, prefix_lens_tensor)
