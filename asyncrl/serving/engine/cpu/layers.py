"""SGLang's layers on a CPU: rotary embedding and RMSNorm in few passes over small tensors, latent attention,
shared experts and experts of other ranks.

At 64 rows an elementwise operation costs its set-up, not its arithmetic, and SGLang composes rotation and
norm of a dozen; their variants stay SGLang's.

Shapes: N tokens, H heads or numbers of a token, D head size, P positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    layers = "sglang.srt.layers"
    return [
        (f"{layers}.rotary_embedding.base.RotaryEmbedding.forward_native", _rotate, "around"),
        (f"{layers}.layernorm.RMSNorm.forward_native", _norm, "around"),
        (f"{layers}.rotary_embedding.factory.get_rope_cpu", _rotary, "around"),
        ("sglang.kernels.ops.elementwise.elementwise.fused_gate_sigmoid_mul_add", _add_gated, "replace"),
        (f"{layers}.moe.fused_moe_native.moe_forward_native", _compute_own, "around"),
    ]


class Rotation:
    """Cosines and sines of all positions, ready for `at`; from [P, D] half cosines, half sines."""

    def __init__(self, cosines_sines: Tensor) -> None:
        self.source = cosines_sines
        cosines, sines = cosines_sines.chunk(2, -1)
        self._cosines = torch.cat((cosines, cosines), -1)
        self._sines = torch.cat((-sines, sines), -1)

    def at(self, positions: Tensor) -> "Turn":
        """For positions [N]; one for all layers of a step."""
        cosines = self._cosines.index_select(0, positions).unsqueeze(1)
        return Turn(cosines, self._sines.index_select(0, positions).unsqueeze(1))


@dataclass(frozen=True, slots=True)
class Turn:
    """The first half of a head turns against its second (Su et al. 2021); [N, 1, D] each."""

    cosines: Tensor
    sines: Tensor

    def __call__(self, heads: Tensor) -> Tensor:
        """[N, H, D] -> [N, H, D]."""
        return torch.addcmul(heads * self.cosines, heads.roll(heads.shape[-1] // 2, -1), self.sines)


def joined(first: Tensor, second: Tensor) -> Tensor | None:
    """[N, A] and [N, B] as one view [N, A + B] where they are neighbours in memory, else None."""
    is_one = (
        first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        and first.dtype == second.dtype
        and first.stride() == second.stride()
        and first.stride(1) == 1
        and first.storage_offset() + first.shape[1] == second.storage_offset()
    )
    if not is_one:
        return None
    width = first.shape[1] + second.shape[1]
    return first.as_strided((first.shape[0], width), first.stride(), first.storage_offset())


def rms_norm(
    tokens: Tensor, weight: Tensor, epsilon: float, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The norm of tokens + residual [N, any], and that sum, rounded as the next layer reads it."""
    total = tokens if residual is None else tokens + residual
    return torch.nn.functional.rms_norm(total, weight.shape, weight, epsilon), total


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


# SGLang 0.5.23 has two ways to compute latent attention (DeepSeek) and chooses by the attention's name. Only
# the one whose queries are multiplied by the matrix of keys reads keys and values from the cache, as
# asyncrl's attention does.
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


# The gate of a shared expert (Qwen2-MoE), for which SGLang 0.5.23 has Triton's kernel alone.
def _add_gated(hidden_states, gate_weight, shared_output, final_hidden_states):
    """Adds sigmoid(hidden . gate) * shared to `final_hidden_states`, [N, H] each, in place."""
    gate = torch.sigmoid((hidden_states @ gate_weight.reshape(-1, 1)).float())
    final_hidden_states += (shared_output * gate).to(final_hidden_states.dtype)


# SGLang's plain loop knows no experts of other ranks (serving.expert_parallel_size): it gives a choice that
# belongs to another rank the number -1, which its kernels for GPUs skip. Here the loop gets each choice of
# this rank as a token of its own. The ranks' outputs are summed afterwards.
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
