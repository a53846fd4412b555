"""The forward pass of plain Llama and Qwen models, with nothing between the kernels.

Between two kernels SGLang looks for parallel groups, quantization, captures and fused kernels. On a CPU,
where all of these are absent, that costs milliseconds of Python per step. Here a model is checked once per
version of its weights, and its prefills and decoding steps then run the same kernels one after the other.
Models that have more than the plain parts stay SGLang's.

Shapes: N requests, H hidden.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_exec, get_parallel
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from asyncrl.serving.engine.cpu import products
from asyncrl.serving.engine.cpu.layers import Turn, has_plain_norm, rotation_of

log = logging.getLogger(__name__)

MODELS = {
    "LlamaModel": "LlamaDecoderLayer",
    "Qwen2Model": "Qwen2DecoderLayer",
    "Qwen3Model": "Qwen3DecoderLayer",
}
"""Class of a decoder -> class of its layers."""


@dataclass(frozen=True, slots=True)
class Product:
    weight: Tensor
    packed: products.PackedWeight | None
    """None where oneDNN has no product of its kind on this machine."""
    bias: Tensor | None

    def __call__(self, rows: Tensor) -> Tensor:
        if self.packed is None:
            return linear(rows, self.weight, self.bias)
        return self.packed.product(rows, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Tensor
    epsilon: float

    def __call__(self, rows: Tensor) -> Tensor:
        return rms_norm(rows, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class Layer:
    """Modules of a layer, in the order of their computation."""

    input_norm: Norm
    qkv: Product
    query_norm: Norm | None
    key_norm: Norm | None
    attention: RadixAttention
    output: Product
    ffn_norm: Norm
    gate_up: Product
    down: Product

    def attend(self, over_cache: Callable, rows: Tensor, turn: Turn, forward_batch) -> Tensor:
        """[N, H] -> [N, query heads * head size]."""
        attention, size = self.attention, self.attention.qk_head_dim
        num_queries = attention.tp_q_head_num
        heads = self.qkv(rows).view(len(rows), -1, size)
        both = heads[:, : num_queries + attention.tp_k_head_num]
        values = heads[:, num_queries + attention.tp_k_head_num :]
        if self.query_norm is None:
            both = turn(both)
            queries, keys = both[:, :num_queries], both[:, num_queries:]
        else:
            queries = turn(self.query_norm(both[:, :num_queries]))
            keys = turn(self.key_norm(both[:, num_queries:]))
        return over_cache(queries, keys, values, attention, forward_batch)

    def feed_forward(self, rows: Tensor) -> Tensor:
        gate, up = self.gate_up(rows).chunk(2, -1)
        return self.down(silu(gate).mul_(up))


class PlainDecoder:
    """Replaces `forward` of a model's decoder; the attention is that of `backend` (attention.py)."""

    def __init__(self, decoder, backend) -> None:
        self._decoder = decoder
        self._backend = backend
        self._original = decoder.forward
        self._layers: list[Layer] | None = None
        self._version: int | None = None

    def __call__(self, input_ids, positions, forward_batch, input_embeds=None, pp_proxy_tensors=None):
        mode = forward_batch.forward_mode
        is_plain = self._is_plain_pass(positions, forward_batch, input_embeds, pp_proxy_tensors)
        layers = self._plain_layers() if is_plain else None
        if layers is None:
            return self._original(input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)
        turn = rotation_of(self._rotary).at(positions)
        over_cache = self._backend.forward_decode if mode.is_decode() else self._backend.forward_extend
        # What SGLang calls the residual: each layer's two parts are added to it, in place, because the
        # allocator costs as much as so small a sum.
        total = self._decoder.embed_tokens(input_ids)
        for layer in layers:
            total += layer.output(layer.attend(over_cache, layer.input_norm(total), turn, forward_batch))
            total += layer.feed_forward(layer.ffn_norm(total))
        return _plain_norm(self._decoder.norm)(total)

    def _is_plain_pass(self, positions, forward_batch, input_embeds, pp_proxy_tensors) -> bool:
        return (
            forward_batch.forward_mode in (ForwardMode.DECODE, ForwardMode.EXTEND)
            and forward_batch.spec_info is None
            and input_embeds is None
            and pp_proxy_tensors is None
            and not self._decoder.layers_to_capture
            and positions.ndim == 1
        )

    @property
    def _rotary(self):
        return self._decoder.layers[0].self_attn.rotary_emb

    def _plain_layers(self) -> list[Layer] | None:
        """None where the model has more than the plain parts. Asked again after each publish."""
        if self._version != products.version():
            self._version = products.version()
            layers = [_plain_layer(layer, self._rotary) for layer in self._decoder.layers]
            is_plain = all(layers) and _plain_norm(self._decoder.norm) is not None
            self._layers = layers if is_plain else None
            log.info("Passes run %s layers of this model", "the plain" if is_plain else "SGLang's")
        return self._layers


def install(model, backend) -> None:
    """Shortens the forward passes of a model where its class is known."""
    if is_plain_model(model):
        model.model.forward = PlainDecoder(model.model, backend)


def is_plain_model(model) -> bool:
    decoder = getattr(model, "model", None)
    layer_class = MODELS.get(type(decoder).__name__)
    parallel = get_parallel()
    return (
        layer_class is not None
        and parallel.tp_size == parallel.pp_size == 1
        and get_exec().deterministic.rl_on_policy_target is None
        and all(type(layer).__name__ == layer_class for layer in decoder.layers)
    )


def _plain_layer(layer, rotary) -> Layer | None:
    """None where it has other parts, several types of numbers, or a rotation other than `rotary`."""
    attention, ffn = layer.self_attn, layer.mlp
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    if hasattr(attention, "q_norm"):
        norms += [attention.q_norm, attention.k_norm]
    first, second, query, key = [*map(_plain_norm, norms), None, None][:4]
    found = [
        _plain_product(attention.qkv_proj, QKVParallelLinear),
        _plain_product(attention.o_proj, RowParallelLinear),
        _plain_product(ffn.gate_up_proj, MergedColumnParallelLinear),
        _plain_product(ffn.down_proj, RowParallelLinear),
    ]
    has_plain_attention = (
        type(attention.attn) is RadixAttention
        and attention.attn.quant_method is None
        and attention.attn.qk_head_dim == attention.attn.v_head_dim
        and attention.rotary_emb is rotary
        and rotation_of(rotary) is not None
    )
    if None in (*map(_plain_norm, norms), *found) or not has_plain_attention:
        return None
    weights = [*(part.weight for part in norms), attention.qkv_proj.weight, rotary.cos_sin_cache]
    if len({weight.dtype for weight in weights}) > 1:
        return None
    qkv, output, gate_up, down = found
    return Layer(first, qkv, query, key, attention.attn, output, second, gate_up, down)


def _plain_product(layer, expected: type) -> Product | None:
    is_plain = (
        type(layer) is expected
        and type(layer.quant_method) is UnquantizedLinearMethod
        and not layer.skip_bias_add
    )
    return Product(layer.weight, products.packed(layer.weight), layer.bias) if is_plain else None


def _plain_norm(norm) -> Norm | None:
    return (
        Norm(norm.weight, norm.variance_epsilon) if type(norm) is RMSNorm and has_plain_norm(norm) else None
    )
