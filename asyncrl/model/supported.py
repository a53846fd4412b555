"""Whether trainer and servers have all that a recipe asks of a model: packages, experts, adapters, bitwise
agreement; and how many parameters adapters have. No torch.
"""

import math
import os
from collections import Counter

from asyncrl.errors import InputError
from asyncrl.model.column_bytes import check_routing_replay
from asyncrl.model.dtype import find_dtype, uses_gpu
from asyncrl.model.families import FAMILIES
from asyncrl.model.families.family import FUSED as FUSED_IN_FOLDERS
from asyncrl.model.layout import ONE_PROCESS, Layout, make_layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import expected_tensors, num_parameters
from asyncrl.recipe import Recipe, Trainer
from asyncrl.recipe.sections.model import Lora
from asyncrl.system.gpus import compute_capabilities, find_gpus
from asyncrl.system.machine import has_fused_weight_gradients, has_transformer_engine

BITWISE_VARIABLE = "ASYNCRL_BITWISE_AGREEMENT"
"""Environment variable of a server: "1" where it computes log-probs by the kernels that trainers share."""


def is_bitwise() -> bool:
    """Whether this server process is one that does."""
    return os.environ.get(BITWISE_VARIABLE) == "1"


def check_bitwise(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError where the engines of `recipe` cannot agree to the last bit on a model of `shape`.

    What the recipe alone tells is refused when it is read, in asyncrl/recipe/checks/training.py.
    """
    if not recipe.model.bitwise_agreement:
        return
    if uses_gpu(recipe):
        reason = (
            "this run computes on a GPU, where SGLang and Megatron have kernels of their own "
            "(docs/agreement.md). Set placement.device to cpu"
        )
    elif shape.num_experts is not None:
        reason = f"{shape.architecture} has experts, whose products have as many rows as they get tokens"
    elif shape.has_multipliers():
        reason = f"{shape.architecture} has multipliers, which the shared kernels do not apply"
    elif not shape.is_plain():
        reason = f"{shape.architecture} has layers or rotary positions that the shared kernels do not know"
    else:
        return
    raise InputError(f"model.bitwise_agreement is true, but {reason}, or model.bitwise_agreement to false.")


INSTALL = "install Transformer Engine (docs/gpus.md)"


def check_packages(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for what this machine cannot compute, with the key and the reason."""
    on_gpu = uses_gpu(recipe)
    for key, value in _state_options(recipe.trainer):
        _check_state(key, value, recipe, shape, on_gpu=on_gpu)
    if recipe.trainer.optimizer_cpu_offload and len(_state_options(recipe.trainer)) > 1:
        raise InputError(
            "trainer.optimizer_cpu_offload is true, and trainer.exp_avg_dtype or trainer.exp_avg_sq_dtype is "
            "bfloat16: states in host memory are float32, as torch's Adam has them. Set one of the two back."
        )


def slower_parts(recipe: Recipe, shape: ModelShape) -> list[str]:
    """A sentence per part of the trainer that this machine's GPUs compute slower for want of a package, with
    its name; none on a CPU. Log-probs and gradients are the same either way, up to rounding."""
    if recipe.cluster.backend != "local" or not uses_gpu(recipe):
        return []
    engine, parts = "Transformer Engine is not installed", []
    if not has_transformer_engine():
        if shape.num_experts is not None:
            parts.append(
                f"{engine}: experts are computed one after the other, {shape.num_experts} in each of "
                f"{shape.expert_layers()} layers, not by grouped products; small ones leave a GPU idle"
            )
        parts.append(f"{engine}: norms and rotary positions are several kernels each")
    if not has_fused_weight_gradients():
        parts.append(
            "apex is not installed: weight gradients are added to the float32 ones by kernels of their own"
        )
    return parts


def _state_options(section: Trainer) -> list[tuple[str, object]]:
    """(key, value) of those that are not as by default; offloading first."""
    options = {"optimizer_cpu_offload": False, "exp_avg_dtype": "float32", "exp_avg_sq_dtype": "float32"}
    given = {key: getattr(section, key) for key in options}
    return [(key, value) for key, value in given.items() if value != options[key]]


def _check_state(key: str, value: object, recipe: Recipe, shape: ModelShape, *, on_gpu: bool) -> None:
    reason = None
    dtype = find_dtype(recipe, shape).name
    if not on_gpu:
        reason = "this run trains on a CPU: its states are in host memory, in torch's Adam, as float32"
    elif not has_transformer_engine():
        reason = f"it needs Transformer Engine, which is not installed: {INSTALL}"
    elif not make_layout(recipe).is_optimizer_distributed:
        reason = (
            "Megatron-core has it only with its distributed optimizer: set "
            "trainer.parallel.distributed_optimizer"
        )
    elif dtype != "bfloat16":
        reason = f"it is for models in bfloat16, and model.dtype is {dtype}"
    if reason is not None:
        default = "false" if value is True else "float32"
        said = str(value).lower()
        raise InputError(f"trainer.{key} is {said}, but {reason}. Or set trainer.{key} to {default}.")


QUANTISED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures whose loaders in SGLang 0.5.23 can quantise a new version over the last one."""
LEAST_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs with products of FP8."""


def check_serving(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for a key of `serving` that the servers of this machine could not have."""
    serving = recipe.serving
    if not (serving.num_started() or recipe.evaluation.num_servers):
        return
    _check_experts(recipe, shape)
    _check_groups(recipe, shape)
    for key, value in (
        ("quantization", serving.quantization),
        ("kv_cache_dtype", serving.kv_cache_dtype),
    ):
        if value is not None and not uses_gpu(recipe):
            raise InputError(
                f"serving.{key} is {value}, but servers run on the CPU, for which SGLang's kernels of FP8 "
                f"are not installed. Set serving.{key} to null, or run on a machine with GPUs."
            )
    if serving.quantization is not None:
        _check_quantization(serving.quantization, shape)


def _check_quantization(kind: str, shape: ModelShape) -> None:
    if shape.architecture not in QUANTISED:
        raise InputError(
            f"serving.quantization is {kind}, but model.path is {shape.architecture}: SGLang 0.5.23 can "
            f"quantise a new version of {' and '.join(QUANTISED)} alone over the last one. Set it to null."
        )
    capabilities = compute_capabilities()
    for gpu in find_gpus():
        major, minor = capabilities.get(gpu.device, LEAST_CAPABILITY)
        if (major, minor) < LEAST_CAPABILITY:
            raise InputError(
                f"serving.quantization is {kind}, but GPU {gpu.number} ({gpu.name}) has compute capability "
                f"{major}.{minor}, which multiplies no FP8: SGLang 0.5.23 would pack the weights so that no "
                "version can follow. Set it to null, or use GPUs of 8.9 or newer."
            )


def _check_groups(recipe: Recipe, shape: ModelShape) -> None:
    groups = recipe.serving.attention_data_parallel_size
    if groups > 1 and shape.num_experts is not None and not uses_gpu(recipe):
        raise InputError(
            f"serving.attention_data_parallel_size is {groups} and model.path has experts, but servers run "
            "on the CPU: SGLang 0.5.23 brings the outputs of experts back to the groups by NCCL alone. Set "
            "it to 1."
        )


def _check_experts(recipe: Recipe, shape: ModelShape) -> None:
    ranks = recipe.serving.expert_parallel_size
    if ranks == 1:
        return
    if shape.num_experts is None:
        raise InputError(
            f"serving.expert_parallel_size is {ranks}, but model.path has no experts. Set it to 1."
        )
    if shape.num_experts % ranks:
        raise InputError(
            f"serving.expert_parallel_size is {ranks}, but model.path has {shape.num_experts} experts per "
            "layer, which cannot be dealt evenly. Set it to 1, or serving.tensor_parallel_size to a "
            f"divisor of {shape.num_experts}."
        )


def check_supported(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for a key that the model cannot have."""
    check_bitwise(recipe, shape)
    check_router(recipe, shape)
    check_routing_replay(recipe, shape)
    check_adapters(recipe, shape)


def check_router(recipe: Recipe, shape: ModelShape) -> None:
    """Raises InputError for a router that Megatron has not, and for a key of `trainer.router` that the model
    has nothing for."""
    section = recipe.trainer.router
    if shape.num_experts is not None and shape.experts_per_token == 1 and shape.are_expert_weights_normalised:
        raise InputError(
            f"{recipe.model.path}: num_experts_per_tok is 1, and {shape.architecture} divides the weights of "
            f"the chosen experts by their sum, which makes every weight 1. Megatron's router does not: it "
            f"would train another model. Choose a model.path with 2 or more experts per token, or, where the "
            f"family has the setting, with norm_topk_prob false."
        )
    if section.frozen and shape.num_experts is None:
        raise InputError(
            f"trainer.router.frozen is true, but {shape.architecture} has no experts, so no routers. Remove "
            f"it."
        )
    if section.bias_update_rate and not shape.has_router_bias:
        raise InputError(
            f"trainer.router.bias_update_rate is {section.bias_update_rate:g}, but {shape.architecture} has "
            f"no routers with a bias per expert. Set it to 0."
        )


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
