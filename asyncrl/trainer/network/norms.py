"""The norms of a layer: of what kind they are, and where; multipliers of embedding and branches (Granite).

Most models have one before attention and one before the feed-forward network. OLMo 2 has them behind these
instead, before what they give is added to the residual; Gemma and GLM-4 have both. Multipliers are no part of
a weight: what is trained and published are the tensors of the folder.

Shapes: P packed tokens, H hidden size, G heads of this tensor-parallel rank, D head size.
"""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.distributed.nn.functional import all_reduce

from asyncrl.model.shape import ModelShape

# torch composes RMSNorm of small operations: a dozen passes over memory, and as many tensors kept for the
# backward pass. Here a slice of rows is computed in float32 by operations in place, while it stays in the
# processor's cache. In 16 bits it is rounded once; in float32 each operation is torch's, in its order, so
# that values and gradients are torch's bit for bit.
NUMBERS_AT_ONCE = 2**17
"""Numbers in a slice; 512 KiB in float32."""


def rms_norm(tokens: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension (Zhang and Sennrich 2019)."""
    output: Tensor
    if tokens.dtype is torch.float32:
        output = _AsTorch.apply(tokens, tokens, weight, epsilon)
    else:
        output = _RMSNorm.apply(tokens, weight, epsilon)
    return output


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tokens: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        flat = tokens.reshape(-1, tokens.shape[-1])
        output, scale = torch.empty_like(flat), weight.float()
        inverses = flat.new_empty(len(flat), 1, dtype=torch.float32)
        for some in _rows(flat):
            x = flat[some].float()
            norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            inverses[some] = norms.square_().div_(flat.shape[1]).add_(epsilon).rsqrt_()
            output[some] = x.mul_(inverses[some]).mul_(scale)
        context.save_for_backward(flat, weight, inverses)
        return output.view(tokens.shape)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        flat, weight, inverses = context.saved_tensors
        gradients = gradient.reshape(flat.shape)
        to_flat, scale = torch.empty_like(flat), weight.float()
        to_weight = torch.zeros_like(scale)
        for some in _rows(flat):
            normed = flat[some].float().mul_(inverses[some])
            slopes = gradients[some].float()
            products = slopes * normed
            to_weight += products.sum(0)
            # The part of the gradient along the vector changes its length, which the norm takes out.
            along = products.mv(scale).div_(flat.shape[1])[:, None]
            slopes = slopes.mul_(scale).sub_(normed.mul_(along))
            to_flat[some] = slopes.mul_(inverses[some])
        return to_flat.view(gradient.shape), to_weight.to(weight.dtype), None


class _AsTorch(torch.autograd.Function):
    """torch.nn.functional.rms_norm of float32 numbers on a CPU and its gradient, bit for bit.

    It takes the tokens twice, as the two factors of torch's products: their gradients reach a residual one
    after the other, and their sum at once would round otherwise.
    """

    @staticmethod
    def forward(context: Any, tokens: Tensor, _: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        flat = tokens.reshape(-1, tokens.shape[-1])
        output, inverses = torch.empty_like(flat), flat.new_empty(len(flat), 1)
        for some in _rows(flat):
            x, own = flat[some], output[some]
            torch.mul(x, x, out=own)
            inverses[some] = own.mean(-1, keepdim=True).add_(epsilon).rsqrt_()
            torch.mul(x, inverses[some], out=own).mul_(weight)
        context.save_for_backward(flat, weight, inverses)
        return output.view(tokens.shape)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        flat, weight, inverses = context.saved_tensors
        gradients = gradient.reshape(flat.shape)
        scaled, of_length = torch.empty_like(flat), torch.empty_like(flat)
        # torch adds up all rows at once: other slices of the sum would round otherwise.
        products = torch.empty_like(flat) if context.needs_input_grad[2] else None
        for some in _rows(flat):
            x, own, inverse = flat[some], scaled[some], inverses[some]
            if products is not None:
                torch.mul(x, inverse, out=products[some]).mul_(gradients[some])
            torch.mul(gradients[some], weight, out=own)
            part = torch.mul(own, x, out=of_length[some])
            along = part.sum(-1, keepdim=True).mul_(-0.5).mul_(inverse.pow(3)).div_(flat.shape[1])
            own.mul_(inverse)
            torch.mul(x, 2, out=part).mul_(along)
        to_weight = None if products is None else products.sum(0)
        return scaled.view(gradient.shape), of_length.view(gradient.shape), to_weight, None


def _rows(matrix: Tensor) -> list[slice]:
    size = max(1, NUMBERS_AT_ONCE // matrix.shape[-1])
    return [slice(a, a + size) for a in range(0, len(matrix), size)]


Add = Callable[[tuple[Tensor, Tensor | None], Tensor, float], Tensor]
"""((output of a branch, bias), residual, dropout) -> their sum."""


class PolicyNorm(torch.nn.RMSNorm):
    """RMSNorm, on a CPU in few passes over memory; under sequence parallelism Megatron sums its gradient over
    the tensor ranks."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, tokens: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self._normed(tokens, self.weight)

    def _normed(self, tokens: Tensor, weight: Tensor) -> Tensor:
        assert self.eps is not None
        if tokens.device.type == "cpu" and tokens.dtype.itemsize <= 4:
            return rms_norm(tokens, weight, self.eps)
        return torch.nn.functional.rms_norm(tokens, self.normalized_shape, weight, self.eps)


class AddOneNorm(PolicyNorm):
    """RMSNorm that multiplies by 1 + weight, in float32 (Gemma)."""

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.device.type == "cpu":
            return self._normed(tokens, 1.0 + self.weight.float())
        return self._normed(tokens.float(), 1.0 + self.weight.float()).to(tokens.dtype)


class WideNorm(torch.nn.Module):
    """RMSNorm over all heads of a token together, those of other tensor-parallel ranks included (OLMo 2).

    Each rank has the weights of its own heads, so their gradient is whole.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, *, num_heads: int
    ) -> None:
        """`hidden_size` is that of a head, `num_heads` of all ranks."""
        super().__init__()
        self.group = parallel_state.get_tensor_model_parallel_group()
        self.size, self.eps = num_heads * hidden_size, eps
        self.weight = torch.nn.Parameter(torch.ones(self.size // self.group.size()))
        set_tensor_model_parallel_attributes(self.weight, True, 0, 1)

    def forward(self, heads: Tensor) -> Tensor:
        """[P, 1, G, D] -> [P, 1, G, D]."""
        wide = heads.float().flatten(-2)
        total = wide.square().sum(-1, keepdim=True)
        if self.group.size() > 1:
            # Each rank uses the sum, so its gradients are summed too.
            total = all_reduce(total, group=self.group)
        normed = wide * (total / self.size + self.eps).rsqrt() * self.weight.float()
        return normed.to(heads.dtype).view(heads.shape)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None
    ) -> dict[str, Any]:
        sharded: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            self.state_dict(keep_vars=True), prefix, {"weight": 0}, sharded_offsets
        )
        return sharded


class NormedAdd(torch.nn.Module):
    """The norm behind attention or behind the feed-forward network, before the residual is added.

    Takes the place of Megatron's function that adds them, which is asked for by `(training, fused)`.
    """

    def __init__(self, config: TransformerConfig, norm: Callable[..., torch.nn.Module], **_: Any) -> None:
        super().__init__()
        self.norm = norm(config=config, hidden_size=config.hidden_size, eps=config.layernorm_epsilon)

    def forward(self, training: bool, fused: bool) -> Add:
        return self._add

    def _add(self, branch: tuple[Tensor, Tensor | None], residual: Tensor, dropout: float) -> Tensor:
        """[P, 1, H] each."""
        output, bias = branch
        assert bias is None and dropout == 0.0
        # Megatron enables gradients around this, in passes without any too: each layer would keep its own.
        with torch.set_grad_enabled(output.requires_grad or residual.requires_grad):
            total: Tensor = residual + self.norm(output)
        return total


def has_own_norms(shape: ModelShape) -> bool:
    """Whether Megatron's specs have no place or no kind for some of the norms."""
    return shape.norm_places != "before" or shape.has_wide_qk_norm or shape.norms_add_one


def norm_kind(shape: ModelShape) -> type[PolicyNorm]:
    return AddOneNorm if shape.norms_add_one else PolicyNorm


def place_norms(
    layer: TransformerLayerSubmodules,
    config: TransformerConfig,
    shape: ModelShape,
    norm: type[torch.nn.Module],
) -> None:
    """Puts the norms of a local layer where `shape` has them."""
    before = norm if shape.norm_places != "behind" else IdentityOp
    layer.input_layernorm = layer.pre_mlp_layernorm = before
    if shape.norm_places != "before":
        add = ModuleSpec(NormedAdd, params={"config": config, "norm": norm})
        layer.self_attn_bda = layer.mlp_bda = add
    attention = layer.self_attention.submodules
    if shape.has_qk_norm:
        attention.q_layernorm = attention.k_layernorm = norm
    if shape.has_wide_qk_norm:
        attention.q_layernorm = ModuleSpec(WideNorm, params={"num_heads": shape.num_heads})
        attention.k_layernorm = ModuleSpec(WideNorm, params={"num_heads": shape.num_kv_heads})


def multiply_embedding(model: GPTModel, multiplier: float, *, is_rounded: bool = False) -> None:
    """Multiplies what the embedding of the first stage gives; by the multiplier as the weights' type has it,
    if `is_rounded`."""

    def multiplied(module: torch.nn.Module, inputs: tuple[object, ...], hidden: Tensor) -> Tensor:
        factor = torch.tensor(multiplier, dtype=hidden.dtype).item() if is_rounded else multiplier
        return hidden * factor

    model.embedding.register_forward_hook(multiplied)


def multiply_branches(layer: TransformerLayerSubmodules, multiplier: float) -> None:
    """Multiplies what attention and the feed-forward network give, before each is added to its residual."""

    def get_add(training: bool, fused: bool) -> Add:
        def add(branch: tuple[Tensor, Tensor | None], residual: Tensor, dropout: float) -> Tensor:
            output, bias = branch
            assert bias is None and dropout == 0.0
            return residual + output * multiplier

        return add

    layer.self_attn_bda = layer.mlp_bda = get_add
