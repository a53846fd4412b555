"""The groups in which weights arrive from the trainer: a wait for weights ends, and leaving never waits.

SGLang 0.5.23 waits for a broadcast as long as its group exists. On NCCL its scheduler would then hang for 30
minutes where the trainer or another server died, and the watchdog would end the process.
"""

import contextlib
from datetime import timedelta

import torch.distributed as dist
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch.distributed import distributed_c10d as c10d

from asyncrl.serving import weight_group

RECEIVE_SECONDS = 150.0
"""Longest wait for a bucket. The trainer waits less (publishing/from_memory.py), so it knows first."""


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
    HookRegistry.register(f"{updater}.init_weights_update_group", join, HookType.AROUND)
    HookRegistry.register(f"{updater}.destroy_weights_update_group", leave, HookType.REPLACE)
    HookRegistry.register(f"{updater}._receive_bucketed_weights_from_distributed", receive, HookType.REPLACE)


def join(original, updater, *arguments, **named):
    """Joins as SGLang does; what goes wrong in a broadcast is raised by `receive`, and ends in gloo as well:
    leaving the group waits for it there."""
    with weight_group.errors_raised_where_they_are_waited_for():
        answer = original(updater, *arguments, **named)
    for group in updater._model_update_group.values():
        c10d._set_pg_timeout(timedelta(seconds=RECEIVE_SECONDS), group)
    return answer


def leave(updater, group_name):
    """Whether this process was in the group, and a sentence, as the replaced method returns them."""
    group = updater._model_update_group.pop(group_name, None)
    if group is None:
        return False, f"The group {group_name} does not exist."
    # A broken group may say so.
    with contextlib.suppress(RuntimeError):
        weight_group.end(group)
    return True, f"Left the group {group_name}."


def receive(updater, *, names, dtypes, shapes, group_name):
    """[(name, tensor)] of the next broadcast. Raises RuntimeError after RECEIVE_SECONDS, which SGLang answers
    with status 400."""
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    bucket = FlattenedTensorBucket.empty(names, dtypes, shapes, updater.device)
    group = updater._model_update_group[group_name]
    work = dist.broadcast(bucket.get_flattened_tensor(), src=0, group=group, async_op=True)
    work.wait(timedelta(seconds=RECEIVE_SECONDS))
    return bucket.reconstruct_tensors()
