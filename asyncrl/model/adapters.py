"""Which models take the adapters of `model.lora`, and how many parameters these have. No torch."""

import math
from collections import Counter

from asyncrl.errors import InputError
from asyncrl.model.families.family import FUSED as FUSED_IN_FOLDERS
from asyncrl.model.families import FAMILIES
from asyncrl.model.layout import ONE_PROCESS, Layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import expected_tensors, num_parameters
from asyncrl.recipe import Recipe
from asyncrl.recipe.lora import Lora

CUT_BY_COLUMNS = ("o_proj", "down_proj")
"""Matrices of which each tensor rank has some columns, and so of A; of others it has rows, and so of B."""
FUSED_EXPERTS = ("gate_proj", "up_proj")
"""Matrices of experts that transformers keeps in one."""
FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "fc1", "up_proj": "fc1"}
"""Matrices that Megatron keeps in one."""


def check_adapters(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError where `model.lora` is set and the model keeps its matrices otherwise than peft names
    them, or where peft could not load the adapters."""
    if recipe.model.lora is None:
        return
    named = FAMILIES[shape.architecture].adapter_targets
    if not named:
        raise InputError(
            f"model.lora is set, but {shape.architecture} has matrices of other names (such as "
            f"{', '.join((*FUSED_IN_FOLDERS, 'kv_b_proj', 'w1'))}), which get no adapters. Remove "
            f"model.lora, which trains all weights."
        )
    if others := [name for name in recipe.model.lora.targets if name not in named]:
        raise InputError(
            f"model.lora.targets has {', '.join(others)}, but {shape.architecture} keeps those of all "
            f"experts in one tensor: they get no adapters. Set model.lora.targets to [{', '.join(named)}]."
        )
    if shape.num_experts is not None:
        own = [name for name in FUSED_EXPERTS if name in recipe.model.lora.targets]
        if len(own) == 1:
            (lacking,) = {*FUSED_EXPERTS} - {*own}
            raise InputError(
                f"model.lora.targets has {own[0]} without {lacking}, but transformers keeps these two of all "
                f"experts in one tensor, of which peft adapts both or none: it could not load the adapter. "
                f"Name both in model.lora.targets, or neither."
            )


def adapter_parameters(shape: ModelShape, lora: Lora, layout: Layout = ONE_PROCESS) -> tuple[int, int]:
    """(those of all matrices but experts', those of experts) of the fullest rank."""
    dense = experts = 0
    for name, size in expected_tensors(shape):
        target = _target(name)
        if target not in lora.targets:
            continue
        rows, columns = size
        if ".experts." in name:
            experts += lora.rank * (rows + columns)
        elif target in CUT_BY_COLUMNS:
            dense += lora.rank * (rows + columns // layout.tensor)
        else:
            dense += lora.rank * (rows // layout.tensor + columns)
    share = math.ceil(shape.num_layers / layout.pipeline) / shape.num_layers
    return round(share * dense), round(share * experts) // layout.expert


def trained_in_short(lora: Lora, shape: ModelShape) -> str:
    """Number and share of the trained parameters, for `check` and `plan`."""
    count = sum(adapter_parameters(shape, lora))
    return (
        f"{count:,} parameters of adapters ({count / num_parameters(shape):.2%}), rank {lora.rank}, alpha "
        f"{lora.alpha:g}, on {', '.join(lora.targets)}"
    )


def largest_matrix(shape: ModelShape, layout: Layout = ONE_PROCESS) -> int:
    """Parameters of the largest of Megatron's matrices inside a layer, on one tensor rank."""
    sizes: Counter[str] = Counter()
    for name, size in expected_tensors(shape):
        if (target := _target(name)) is not None:
            place = name.removesuffix(f"{target}.weight") + FUSED.get(target, target)
            sizes[place] += math.prod(size) // (1 if ".experts." in name else layout.tensor)
    return max(sizes.values())


def _target(name: str) -> str | None:
    *_, target, kind = name.split(".")
    return target if kind == "weight" and target.endswith("_proj") else None
