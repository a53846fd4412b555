"""Latent attention (DeepSeek) on a CPU: by the cached vectors alone, and rotary positions without scaling.

SGLang 0.5.23 has two ways to compute it and chooses by the attention's name. Only the one whose queries are
multiplied by the matrix of keys reads keys and values from the cache, as asyncrl's attention does.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register("sglang.srt.layers.rotary_embedding.factory.get_rope_cpu", _rotary, HookType.AROUND)


def choose_cached(backend: str) -> None:
    """Models with latent attention compute it over the cache where `backend` is their attention."""
    from sglang.srt.models.deepseek_common import attention_backend_handler as handlers
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    handlers.AttentionBackendRegistry.register(backend, lambda *_: AttnForwardMethod.MLA)


def _rotary(
    original, head_size, rotary_dim, max_position, base, is_neox_style=True, rope_scaling=None, *rest
):
    """SGLang's own for CPUs knows the yarn of DeepSeek alone."""
    if rope_scaling is not None:
        return original(head_size, rotary_dim, max_position, base, is_neox_style, rope_scaling, *rest)
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    return get_rope(head_size, rotary_dim, max_position, base, is_neox_style)
