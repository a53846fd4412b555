"""Checks of how local servers divide and round a model."""

from asyncrl.recipe.sections.model import Model
from asyncrl.recipe.sections.serving import Serving


def check_servers(model: Model, serving: Serving) -> None:
    ranks, groups = serving.tensor_parallel_size, serving.attention_data_parallel_size
    if ranks % groups:
        raise ValueError(
            f"serving.attention_data_parallel_size is {groups} but serving.tensor_parallel_size is {ranks}: "
            f"the ranks of a server form groups of one size. Set it to a divisor of {ranks}, or to 1."
        )
    experts = serving.expert_parallel_size
    if experts not in (1, ranks):
        raise ValueError(
            f"serving.expert_parallel_size is {experts} but serving.tensor_parallel_size is {ranks}: SGLang "
            f"deals experts to all ranks of a server or slices each for all. Set it to {ranks} or to 1."
        )
    for key in ("quantization", "kv_cache_dtype"):
        value = getattr(serving, key)
        if value is not None and model.dtype == "float32":
            raise ValueError(
                f"serving.{key} is {value} but model.dtype is float32: SGLang's kernels for FP8 give 16 "
                f"bits. Set model.dtype to bfloat16, or serving.{key} to null."
            )
