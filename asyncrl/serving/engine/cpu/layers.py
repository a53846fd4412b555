"""SGLang's rotary embedding and RMSNorm on a CPU, by elementwise.py; their variants stay SGLang's."""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.serving.engine.cpu.elementwise import Rotation, joined, rms_norm


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    layers = "sglang.srt.layers"
    HookRegistry.register(
        f"{layers}.rotary_embedding.base.RotaryEmbedding.forward_native", _rotate, HookType.AROUND
    )
    HookRegistry.register(f"{layers}.layernorm.RMSNorm.forward_native", _norm, HookType.AROUND)


def rotation_of(embedding) -> Rotation | None:
    """The tables of an embedding that turns whole heads by halves (the usual kind), else None."""
    rotation = embedding.__dict__.get("rotation")
    # SGLang replaces its table by a longer one when a position needs it.
    if rotation is None or rotation.source is not embedding.cos_sin_cache:
        is_plain = (
            # Longrope has two tables, and no such attribute.
            getattr(embedding, "is_neox_style", False)
            and embedding.rotary_dim == embedding.head_size
            and not hasattr(embedding, "sin_cos_cache")
        )
        rotation = Rotation(embedding.cos_sin_cache) if is_plain else None
        embedding.__dict__["rotation"] = rotation
    return rotation


def has_plain_norm(norm) -> bool:
    """Whether it is the root mean square and a weight, computed in its usual types."""
    return (
        norm.has_weight
        and norm.override_orig_dtype is None
        and not norm.fp32_residual
        and norm.variance_size_override is None
    )


def _rotate(original, embedding, positions, query, key, offsets=None, fused_set_kv_buffer_arg=None):
    size = embedding.head_size
    is_plain = (
        offsets is None
        and fused_set_kv_buffer_arg is None
        and positions.ndim == 1
        and query.ndim == key.ndim == 2
        and embedding.cos_sin_cache.dtype == query.dtype == key.dtype
    )
    rotation = rotation_of(embedding) if is_plain else None
    if rotation is None:
        return original(embedding, positions, query, key, offsets, fused_set_kv_buffer_arg)
    turn, both = rotation.at(positions), joined(query, key)
    if both is None:
        return tuple(turn(part.view(len(part), -1, size)).view(part.shape) for part in (query, key))
    rotated = turn(both.view(len(both), -1, size)).view(both.shape)
    return rotated.split((query.shape[1], key.shape[1]), -1)


def _norm(original, norm, x, residual=None, post_residual_addition=None, quant_linear=None):
    is_plain = (
        has_plain_norm(norm)
        and post_residual_addition is None
        and x.dtype == norm.weight.dtype
        and x.shape[-1] == norm.hidden_size
        and (residual is None or residual.dtype == x.dtype)
    )
    if not is_plain:
        return original(norm, x, residual, post_residual_addition, quant_linear)
    normed, total = rms_norm(x, norm.weight, norm.variance_epsilon, residual)
    return normed if residual is None else (normed, total)
