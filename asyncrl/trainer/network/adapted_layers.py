"""Megatron's parallel matrices under low-rank adapters (LoRA: Hu et al. 2021, arXiv 2106.09685).

A layer multiplies by W + scale x B A: computed in float32 and rounded once to the type of W. That is the
weight that the servers are sent, so that what a policy samples and what it trains on is the same number. The
gradient of A and B is that of the unrounded sum, and W has none. The sum is made in each pass and once more
in its backward pass: it is never kept, so that there is one copy of the weights, and W alone is the base
model. That costs 2 x rank operations per weight and pass, as many as `rank` tokens do.

Megatron keeps q, k and v in one matrix, gate and up in another: each of them has an adapter of its own, as
the names of peft have it. A matrix that is cut by rows (column-parallel) has B cut like it and A on all
tensor ranks, one that is cut by columns the other way round. The gradient of what all ranks hold is the sum
of theirs, made in the backward pass of each micro-batch, of rank x hidden size numbers.

Shapes: T tokens, I columns and O rows of the matrix on this tensor rank, R rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from asyncrl.recipe.sections.model import Lora
from asyncrl.trainer.ranks.megatron import parts_of

OWNER = "adapted_layer"
"""Attribute of a matrix that has adapters: its layer."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of one of Hugging Face's matrices are in one of Megatron's: a stretch of each group."""

    num_groups: int
    begin: int
    end: int

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """[O, ...] -> a view [groups, rows, ...]."""
        groups: Tensor = matrix.unflatten(0, (self.num_groups, -1))
        return groups[:, self.begin : self.end]

    def of_outputs(self, outputs: Tensor) -> Tensor:
        """[T, O] -> [T, rows of all groups]."""
        groups: Tensor = outputs.unflatten(1, (self.num_groups, -1))
        return groups[:, :, self.begin : self.end].flatten(1)


class Adapter(torch.nn.Module):
    """A [R, I] and B [O, R] of one matrix, in float32 whatever the model computes in."""

    def __init__(self, rank: int, num_columns: int, num_rows: int) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(rank, num_columns))
        self.b = torch.nn.Parameter(torch.zeros(num_rows, rank))

    def forward(self) -> tuple[Tensor, Tensor]:
        """A and B, whole where weights are gathered during the pass: Megatron waits for them in a hook."""
        return self.a, self.b

    def _apply(self, function: Any, recurse: bool = True) -> "Adapter":
        # A model's type is not the adapters': in bfloat16 a step would be lost in A.
        moved: Adapter = super()._apply(lambda tensor: tensor.to(function(tensor[:0]).device), recurse)
        return moved


class AdaptedLayer(torch.nn.Module):
    """A mixin before Megatron's class of column- or row-parallel matrices."""

    weight: Tensor
    tp_group: dist.ProcessGroup
    is_expert: bool
    is_adapted = True
    """Whether the adapters count: without them the layer is the base model's."""
    cut_of_adapters: tuple[str, int]
    """Which of a and b is cut for the tensor ranks, and its dimension; the other is on all of them."""
    cut_of_matrix: dict[str, int]
    """Dimensions of the layer's own parameters that are cut."""

    def _add_adapters(self, lora: Lora, places: dict[str, Rows]) -> None:
        self.scale = lora.scale()
        self.places = {name: rows for name, rows in places.items() if name in lora.targets}
        num_columns = self.weight.shape[1]
        self.adapters = torch.nn.ModuleDict(
            {
                name: Adapter(lora.rank, num_columns, rows.num_groups * (rows.end - rows.begin))
                for name, rows in self.places.items()
            }
        )
        cut, dimension = self.cut_of_adapters
        for adapter in self.adapters.values():
            set_tensor_model_parallel_attributes(getattr(adapter, cut), True, dimension, 1)
            for matrix in adapter.parameters():
                # Experts that are dealt have groups of their own for their gradients.
                matrix.allreduce = self.weight.allreduce  # type: ignore[attr-defined]
                if self.is_expert:
                    # Experts are never cut. What is not marked as cut is counted in the gradient's norm on
                    # the first tensor rank alone, which lacks the experts of the others.
                    matrix.tensor_model_parallel = True  # type: ignore[attr-defined]
        setattr(self.weight, OWNER, self)

    def merged(self) -> Tensor:
        """[O, I] the matrix that this layer multiplies by."""
        if not self.is_adapted:
            return self.weight.detach()
        matrices = [getattr(self.adapters[name], x).detach() for name in self.places for x in "ab"]
        return _merge(self.weight, self.scale, self._parts(), matrices)

    def _parts(self) -> list[Rows]:
        return list(self.places.values())

    def _matrices(self) -> list[Tensor]:
        """A and B of each part in turn, for a pass."""
        return [matrix for name in self.places for matrix in self.adapters[name]()]

    def _forward_impl(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        allreduce_dgrad: bool,
        sequence_parallel: bool,
        **_: Any,
    ) -> Tensor:
        """In place of Megatron's product: [..., I] -> [..., O]."""
        if sequence_parallel:
            input = gather_from_sequence_parallel_region(
                input, tensor_parallel_output_grad=True, group=self.tp_group
            )
        elif allreduce_dgrad:
            input = copy_to_tensor_model_parallel_region(input, group=self.tp_group)
        if self.is_adapted:
            output: Tensor = _AdaptedProduct.apply(input, weight, self, *self._matrices())
        else:
            output = torch.nn.functional.linear(input, weight)
        return output if bias is None else output + bias

    def sum_over_ranks(self, of_a: Tensor, of_b: Tensor) -> None:
        """Sums, in place, the gradient of what all tensor ranks hold."""
        if self.tp_group.size() > 1:
            dist.all_reduce(of_a if self.cut_of_adapters[0] == "b" else of_b, group=self.tp_group)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Sequence[Any] = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Megatron's description of the parameters, for checkpoints."""
        cut, dimension = self.cut_of_adapters
        cuts = self.cut_of_matrix | {f"adapters.{name}.{cut}": dimension for name in self.places}
        found: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            cuts,
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=metadata["dp_cp_group"],
        )
        return found


class AdaptedColumns(AdaptedLayer, ColumnParallelLinear):
    """Each tensor rank has some of the rows."""

    config: TransformerConfig
    output_size_per_partition: int
    cut_of_adapters = ("b", 0)
    cut_of_matrix = {"weight": 0, "bias": 0}

    def __init__(self, *arguments: Any, lora: Lora, names: tuple[str, ...], **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if len(names) == 3:
            places = _query_key_value(self.config, self.tp_group.size(), names)
        else:
            size = self.output_size_per_partition // len(names)
            places = {name: Rows(1, i * size, (i + 1) * size) for i, name in enumerate(names)}
        self._add_adapters(lora, places)


class AdaptedRows(AdaptedLayer, RowParallelLinear):
    """Each tensor rank has some of the columns."""

    output_size: int
    cut_of_adapters = ("a", 1)
    cut_of_matrix = {"weight": 1}

    def __init__(self, *arguments: Any, lora: Lora, names: tuple[str, ...], **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        (name,) = names
        self._add_adapters(lora, {name: Rows(1, 0, self.output_size)})


def adapt(layer: ModuleSpec, lora: Lora) -> None:
    """Puts layers with adapters into the local spec of a transformer layer, where `lora` has targets."""
    layer_parts = parts_of(layer)
    attention = parts_of(layer_parts.self_attention)
    attention.linear_qkv = (
        _adapted(AdaptedColumns, lora, "q_proj", "k_proj", "v_proj") or attention.linear_qkv
    )
    attention.linear_proj = _adapted(AdaptedRows, lora, "o_proj") or attention.linear_proj
    network = parts_of(layer_parts.mlp)
    experts = getattr(network, "experts", None)
    # Megatron's spec has a shared expert also where the model has none.
    for each in (network,) if experts is None else (parts_of(experts), parts_of(network.shared_experts)):
        each.linear_fc1 = _adapted(AdaptedColumns, lora, "gate_proj", "up_proj") or each.linear_fc1
        each.linear_fc2 = _adapted(AdaptedRows, lora, "down_proj") or each.linear_fc2


def adapted_layers(model: torch.nn.Module) -> Iterator[AdaptedLayer]:
    return (module for module in model.modules() if isinstance(module, AdaptedLayer))


def published(parameter: Tensor) -> Tensor:
    """The tensor that servers get of a parameter."""
    owner: AdaptedLayer | None = getattr(parameter, OWNER, None)
    return parameter.detach() if owner is None else owner.merged()


def is_of_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return ".adapters." in name


def _adapted(kind: type[AdaptedLayer], lora: Lora, *names: str) -> ModuleSpec | None:
    if not set(names) & set(lora.targets):
        return None
    return ModuleSpec(module=kind, params={"lora": lora, "names": names})


def _query_key_value(config: TransformerConfig, num_ranks: int, names: tuple[str, ...]) -> dict[str, Rows]:
    """Rows of q, k and v, which Megatron interleaves by key-value group."""
    size, heads = config.kv_channels, config.num_attention_heads // config.num_query_groups
    # Each head's query may have a gate behind it.
    queries = heads * size * (2 if config.attention_output_gate else 1)
    ends = (0, queries, queries + size, queries + 2 * size)
    num_groups = config.num_query_groups // num_ranks
    return {name: Rows(num_groups, ends[i], ends[i + 1]) for i, name in enumerate(names)}


def _merge(weight: Tensor, scale: float, parts: Sequence[Rows], matrices: Sequence[Tensor]) -> Tensor:
    """W + scale x B A of each part, in float32, rounded once to W's type."""
    merged = weight.detach().to(torch.float32, copy=True)
    for rows, a, b in zip(parts, matrices[::2], matrices[1::2], strict=True):
        of_groups = b.unflatten(0, (rows.num_groups, -1))
        rows.of_matrix(merged).baddbmm_(of_groups, a.expand(rows.num_groups, *a.shape), alpha=scale)
    return merged.to(weight.dtype)


class _AdaptedProduct(torch.autograd.Function):
    """x [..., I] -> x (W + scale x B A)^T [..., O]; matrices are A and B of each part in turn."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, layer: AdaptedLayer, *matrices: Tensor) -> Tensor:
        context.layer = layer
        context.save_for_backward(x, weight, *matrices)
        return torch.nn.functional.linear(x, _merge(weight, layer.scale, layer._parts(), matrices))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layer: AdaptedLayer = context.layer
        x, weight, *matrices = context.saved_tensors
        parts = layer._parts()
        to_x = None
        if context.needs_input_grad[0]:
            to_x = gradient @ _merge(weight, layer.scale, parts, matrices)
        x, gradient = x.flatten(0, -2), gradient.flatten(0, -2)
        found: list[Tensor] = []
        for rows, a, b in zip(parts, matrices[::2], matrices[1::2], strict=True):
            slopes = rows.of_outputs(gradient)
            # Of T x R numbers each: the product of T x O and T x I, the gradient of W, is never made.
            to_b = (slopes.t() @ (x @ a.to(x.dtype).t())).float().mul_(layer.scale)
            to_a = ((slopes @ b.to(x.dtype)).t() @ x).float().mul_(layer.scale)
            layer.sum_over_ranks(to_a, to_b)
            found += [to_a, to_b]
        return to_x, None, None, *found
