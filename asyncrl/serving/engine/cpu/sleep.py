"""A server on a CPU that is told to release its memory does: SGLang 0.5.23 leaves that to torch_memory_saver,
which needs a GPU.

The tensors stay, their memory goes: whatever refers to them finds it again. Weights that come back are
undefined until some are loaded, as on a GPU; buffers of the model keep their values, which SGLang does.
"""

from collections.abc import Iterable

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch import Tensor

from asyncrl.serving.engine.cpu import packed_weights
from asyncrl.serving.engine.cpu.tensor_memory import allocate, free, give_back

MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"

_released: dict[str, list[tuple[Tensor, int]]] = {}
"""Tag -> tensors and the bytes of their storage, while they have none."""


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    HookRegistry.register(f"{MANAGER}.release_memory_occupation", _release, HookType.AROUND)
    HookRegistry.register(f"{MANAGER}.resume_memory_occupation", _resume, HookType.AROUND)


def _release(original, manager, request):
    reply = original(manager, request)
    runner = manager.tp_worker.model_runner
    for tag in request.tags:
        _released[tag] = free(_tensors(runner, tag))
    packed_weights.forget()
    give_back()
    return reply


def _resume(original, manager, request):
    for tag in request.tags:
        allocate(_released.pop(tag))
    if "kv_cache" in request.tags:
        pool = _pool(manager.tp_worker.model_runner)
        for tensor in _tensors(manager.tp_worker.model_runner, "kv_cache"):
            # As at the start: padding reads rows that were never written, and NaN survives its mask.
            tensor.zero_()
        pool._init_data_ptrs_and_strides()
    return original(manager, request)


def _tensors(runner, tag) -> Iterable[Tensor]:
    if tag == "weights":
        return runner.model.parameters()
    if tag == "cuda_graph":
        return []
    pool = _pool(runner)
    return [*pool.k_buffer, *pool.v_buffer]


def _pool(runner):
    """Keys and values; states of linear attention stay."""
    pool = runner.token_to_kv_pool
    return getattr(pool, "full_kv_pool", pool)
