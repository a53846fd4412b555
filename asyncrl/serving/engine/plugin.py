"""The entry point that SGLang calls in each of its processes (group "sglang.srt.plugins" in pyproject.toml).

Registers hooks and names only, and imports little: the processes that do not use a hook pay for it too.
"""

CPU_ATTENTION = "asyncrl_cpu"


def load() -> None:
    """A token for each request, one address for the ranks, what config.json implies, weights from a URL,
    digests of loaded weights, of quantised ones too, whole steps before an update, waits for weights that
    end, latent attention as transformers has it, version spans, short aborts, clean and prompt ends, shared
    prompts, no random bias in a reward model's head, tokens that are never sampled, log-probs of input
    tokens at the temperature, the experts of each token, and the list of these hooks; on a CPU lighter
    processes, batched attention, packed weights, shorter ways to decode, norm, rotate and sample, gates of
    shared experts, experts of other ranks, norms of linear attention, latent attention, and sleep too.
    With ASYNCRL_BITWISE_AGREEMENT the kernels that trainers share take the place of packed weights and of
    the shorter ways to norm and rotate."""
    import torch

    from asyncrl.serving.engine.hooks import (
        aborts,
        access,
        applied_hooks,
        completed_config,
        head_bias,
        input_logprobs,
        latent_attention,
        leftovers,
        loaded_weights,
        one_address,
        prompt_ends,
        prompt_sharing,
        quantised_weights,
        remote_weights,
        routed_experts,
        step_in_flight,
        unsampled,
        update_groups,
        version_spans,
    )

    applied_hooks.install()
    access.install()
    one_address.install()
    completed_config.install()
    latent_attention.install()
    loaded_weights.install()
    quantised_weights.install()
    step_in_flight.install()
    remote_weights.install()
    update_groups.install()
    version_spans.install()
    aborts.install()
    leftovers.install()
    prompt_ends.install()
    head_bias.install()
    prompt_sharing.install()
    unsampled.install()
    input_logprobs.install()
    routed_experts.install()
    if not torch.cuda.is_available():
        from asyncrl.model.supported import is_bitwise
        from asyncrl.serving.engine.cpu import dealt_experts as cpu_dealt_experts
        from asyncrl.serving.engine.cpu import delta_net as cpu_delta_net
        from asyncrl.serving.engine.cpu import latent_attention as cpu_latent_attention
        from asyncrl.serving.engine.cpu import layers as cpu_layers
        from asyncrl.serving.engine.cpu import processes as cpu_processes
        from asyncrl.serving.engine.cpu import products as cpu_products
        from asyncrl.serving.engine.cpu import sampler as cpu_sampler
        from asyncrl.serving.engine.cpu import shared_expert as cpu_shared_expert
        from asyncrl.serving.engine.cpu import sleep as cpu_sleep

        cpu_processes.install()
        cpu_sampler.install()
        cpu_products.install(is_bitwise=is_bitwise())
        cpu_layers.install()
        cpu_latent_attention.install()
        cpu_shared_expert.install()
        cpu_delta_net.install()
        cpu_dealt_experts.install()
        cpu_sleep.install()
        _register_cpu_attention()


def _register_cpu_attention() -> None:
    from sglang.srt.arg_groups.choices import add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    add_attention_backend_choices([CPU_ATTENTION])
    register_attention_backend(CPU_ATTENTION)(_make_cpu_attention)
    # SGLang asks for the name "torch_native" here to learn that there is no Triton.
    HookRegistry.register("sglang.srt.mem_cache.allocation.get_last_loc", _last_slots, HookType.REPLACE)
    HookRegistry.register(
        "sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments", _adjust, HookType.AROUND
    )


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
    from asyncrl.serving.engine.cpu.latent_attention import choose_cached

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
