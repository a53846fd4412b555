"""Whether trainer and servers have all that a recipe asks of a model. No torch."""

from asyncrl.errors import InputError
from asyncrl.model.adapters import check_adapters
from asyncrl.model.bitwise import check_bitwise
from asyncrl.model.dtype import find_dtype, uses_gpu
from asyncrl.model.layout import make_layout
from asyncrl.model.routes import check_routing_replay
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe, Trainer
from asyncrl.system.gpus import compute_capabilities, find_gpus
from asyncrl.system.machine import has_fused_weight_gradients, has_transformer_engine

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
