"""Matrix products of SGLang on a CPU, with weights in the layout that oneDNN computes in, packed once per
version.

torch's own product packs a bfloat16 weight again in each call, a fifth of a decoding step; and its float32
products are MKL's, which takes a slow path on processors that are not Intel's.

A version is published into the weights in place, so everything that writes weights forgets what was packed.
So do the digests that confirm a version: what serves it is packed from bytes that they covered.
"""

import weakref

import torch
from torch import Tensor

from asyncrl.model.supported import is_bitwise
from asyncrl.serving.kernels import bitwise

WRITERS = (
    "update_weights_from_disk",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "load_weights_from_distributed",
    "begin_weight_update",
    "end_weight_update",
)
"""The methods of SGLang's updater that write weights."""

MANY_NUMBERS = 2**20
"""Rows times the numbers of the weight: a smaller product costs less without oneDNN's set-up."""

PAYS_AFTER = 16
"""Products with one version of a weight before it is packed, which takes about what that many gain."""

TYPICAL_ROWS = 64
"""oneDNN chooses the layout for a number of rows; other numbers compute in it too."""

_version = 0
"""Version of all weights of this process."""

_all: "weakref.WeakSet[PackedWeight]" = weakref.WeakSet()


def hooks():
    """With ASYNCRL_BITWISE_AGREEMENT the output layer is computed as trainers compute it."""
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
    unquantized = "sglang.srt.layers.quantization.unquant"
    logits = _bitwise_logits if is_bitwise() else _logits
    return [
        # Before is enough, also where one fails midway: no step is computed meanwhile.
        *((f"{updater}.{name}", _forget, "before") for name in WRITERS),
        ("sglang.srt.utils.weight_checker.WeightChecker.handle", _forget, "before"),
        (f"{unquantized}.UnquantizedLinearMethod.apply", _apply, "around"),
        (f"{unquantized}.UnquantizedEmbeddingMethod.apply", _apply, "around"),
        ("sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head", logits, "around"),
    ]


def _forget(*_, **__):
    forget()


def _apply(original, method, layer, x, bias=None):
    weight = packed(layer.weight)
    if weight is None or x.dtype != layer.weight.dtype:
        return original(method, layer, x, bias)
    return weight.product(x, bias)


def _bitwise_logits(original, processor, hidden_states, lm_head, embedding_bias=None, *, out=None):
    weight = lm_head.weight[: processor.config.vocab_size]
    dtype = torch.float32 if processor.use_fp32_lm_head else weight.dtype
    return bitwise.linear(hidden_states.to(dtype), weight.to(dtype))


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
    held = packed(weight) if is_plain else None
    if held is None:
        return original(processor, hidden_states, lm_head, embedding_bias, out=out)
    return held.product(hidden_states)


def forget() -> None:
    """The weights may have changed: packed copies, which are as large as these, go at once."""
    global _version
    _version += 1
    for weight in _all:
        weight.forget()


def version() -> int:
    """Another number after each `forget`."""
    return _version


class PackedWeight:
    """A weight [outputs, inputs] that changes in place; the caller says when (the module's `forget`)."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._packed: Tensor | None = None
        self._num_products = 0
        self._least = -(-MANY_NUMBERS // weight.shape[0])
        """Numbers of the rows from which on a product is large."""
        _all.add(self)

    @property
    def is_packed(self) -> bool:
        return self._packed is not None

    def forget(self) -> None:
        self._packed, self._num_products = None, 0

    def product(self, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        """rows @ weight.T + bias, [..., inputs] -> [..., outputs]."""
        if rows.numel() < self._least:
            return torch.nn.functional.linear(rows, self._weight, bias)
        if self._packed is None:
            self._num_products += 1
            if self._num_products <= PAYS_AFTER:
                return torch.nn.functional.linear(rows, self._weight, bias)
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, TYPICAL_ROWS)
        return torch.ops.mkldnn._linear_pointwise(rows, self._packed, bias, "none", [], "")


def packed(weight: Tensor) -> PackedWeight | None:
    """`weight` with a place for its packed copy, kept on the tensor; None where oneDNN cannot help."""
    held = getattr(weight, "packed", None)
    if held is None and can_pack(weight):
        held = weight.packed = PackedWeight(weight)
    return held


def can_pack(weight: Tensor) -> bool:
    """Whether torch has oneDNN's products for this weight on this machine."""
    if weight.device.type != "cpu" or weight.ndim != 2 or not torch.backends.mkldnn.is_available():
        return False
    match weight.dtype:
        case torch.float32:
            return True
        case torch.bfloat16:
            return torch.ops.mkldnn._is_mkldnn_bf16_supported()
        case _:
            return False
