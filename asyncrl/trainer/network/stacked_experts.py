"""Experts that folders keep in one tensor: [experts, inputs, outputs], gate and up by turns (gpt-oss).

Families name a slice of it by the tensor's name and the expert's number behind it. Here a slice becomes a
matrix of Megatron's, [outputs, inputs] with gate over up, and slices become the tensor again.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

BY_TURNS = "gate_up_proj"
"""How the names of tensors begin whose outputs are gate and up by turns."""


def tensor_of(name: str) -> tuple[str, int | None]:
    """(name of the tensor in a folder, the expert whose slice `name` is of it or None)."""
    tensor, _, last = name.rpartition(".")
    return (tensor, int(last)) if last.isdecimal() else (name, None)


def fetch_part(fetch: Callable[[str], Tensor], name: str) -> Tensor:
    """The part of a parameter of this name; `fetch` gives one tensor of the folder."""
    tensor, expert = tensor_of(name)
    if expert is None:
        return fetch(name)
    # Of a mapped file this reads the slice alone.
    part = fetch(tensor)[expert].mT if fetch(tensor).ndim == 3 else fetch(tensor)[expert]
    return torch.cat([part[::2], part[1::2]]) if _is_by_turns(tensor) else part


def stack_parts(parts: Iterable[tuple[str, Tensor]], num_experts: int | None) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folder, of parameters whose parts come expert by expert."""
    whole: Tensor | None = None
    for name, part in parts:
        tensor, expert = tensor_of(name)
        if expert is None:
            yield name, part
            continue
        assert num_experts is not None
        if _is_by_turns(tensor):
            part = torch.stack(part.chunk(2), 1).flatten(0, 1)
        part = part.mT if part.ndim == 2 else part
        if whole is None:
            whole = part.new_empty(num_experts, *part.shape)
        whole[expert] = part
        if expert == num_experts - 1:
            yield tensor, whole
            whole = None


def _is_by_turns(tensor: str) -> bool:
    return tensor.rpartition(".")[2].startswith(BY_TURNS)
