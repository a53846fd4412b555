"""The norms of a layer: of what kind they are, and where.

Most models have one before attention and one before the feed-forward network. OLMo 2 has them behind these
instead, before what they give is added to the residual; Gemma and GLM-4 have both.

Shapes: P packed tokens, H hidden size, G heads of this tensor-parallel rank, D head size.
"""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.distributed.nn.functional import all_reduce

from asyncrl.model.shape import ModelShape
from asyncrl.trainer.network.norm import rms_norm

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
