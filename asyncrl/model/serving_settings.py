"""Settings of local servers that a model or a device does not have, refused with the reason. No torch."""

from asyncrl.errors import InputError
from asyncrl.model.device import uses_gpu
from asyncrl.model.shape import ModelShape
from asyncrl.recipe import Recipe
from asyncrl.system.gpus import compute_capabilities, find_gpus

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
