"""Processes of a server on a CPU: fewer and lighter ones, which give their memory back while they sleep."""

import ctypes
import gc
import multiprocessing
from collections.abc import Iterable

import torch
from torch import Tensor

from asyncrl.serving.engine.cpu import products

_released: dict[str, list[tuple[Tensor, int]]] = {}
"""Tag -> tensors and the bytes of their storage, while they have none."""


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    engine, managers = "sglang.srt.entrypoints.engine", "sglang.srt.managers"
    paused = f"{managers}.scheduler.Scheduler._record_scheduler_state_for_paused_engine"
    updater = f"{managers}.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    return [
        (f"{engine}._set_envs_and_config", _fork_processes, "after"),
        (f"{engine}.Engine._launch_detokenizer_subprocesses", _launch_needed_detokenizers, "around"),
        (paused, _sleep_while_paused, "after"),
        (f"{updater}.release_memory_occupation", _release, "around"),
        (f"{updater}.resume_memory_occupation", _resume, "around"),
    ]


# The scheduler is forked and the detokenizer left out. SGLang spawns each process, because CUDA does not
# survive a fork: each then imports torch, transformers and SGLang again, which takes most of the start and
# most of the memory. Without CUDA they can share one image.
def _fork_processes(result, server_args):
    multiprocessing.set_start_method("fork", force=True)
    # The collector, off since sitecustomize.py, does not visit frozen objects: their pages stay shared.
    gc.freeze()
    gc.enable()


def _launch_needed_detokenizers(original, cls, server_args, port_args, run_detokenizer_process_func):
    """None with --skip-tokenizer-init: the scheduler then sends its tokens straight to the HTTP process."""
    from sglang.srt.runtime_context import get_serving

    if get_serving().skip_tokenizer_init:
        return [], []
    return original(
        cls,
        server_args=server_args,
        port_args=port_args,
        run_detokenizer_process_func=run_detokenizer_process_func,
    )


def _sleep_while_paused(result, scheduler):
    """A paused scheduler would poll for the message that wakes it, on a core that the trainer could use."""
    scheduler.maybe_sleep_on_idle()


# A server that is told to release its memory does: SGLang 0.5.23 leaves that to torch_memory_saver, which
# needs a GPU. The tensors stay, their memory goes: whatever refers to them finds it again. Weights that come
# back are undefined until some are loaded, as on a GPU; buffers of the model keep their values, which SGLang
# does.
def _release(original, manager, request):
    reply = original(manager, request)
    runner = manager.tp_worker.model_runner
    for tag in request.tags:
        _released[tag] = free(_tensors(runner, tag))
    products.forget()
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


def free(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """Takes the memory of tensors away; each with the bytes that its storage had. Tied ones come once."""
    freed = []
    own: dict[int, Tensor] = {}
    """Address of a tensor in memory that is not torch's -> one that takes its place."""
    for tensor in tensors:
        if not tensor.untyped_storage().resizable():
            # Weights as safetensors made them: from now on in memory of torch's own.
            tensor.data = own.setdefault(tensor.data_ptr(), torch.empty_like(tensor))
        storage = tensor.untyped_storage()
        if storage.nbytes():
            freed.append((tensor, storage.nbytes()))
            storage.resize_(0)
    return freed


def allocate(freed: Iterable[tuple[Tensor, int]]) -> None:
    """Gives back what `free` took; the values are undefined."""
    for tensor, num_bytes in freed:
        tensor.untyped_storage().resize_(num_bytes)


def give_back() -> None:
    """Freed tensors of megabytes stay with the process otherwise (see engine_environment)."""
    ctypes.CDLL(None).malloc_trim(0)
