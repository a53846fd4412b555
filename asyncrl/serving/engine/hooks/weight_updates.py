"""How updates of weights reach a server: from a copy on its host, or in a group of torch.distributed, and
never during a step.
"""

import asyncio
import atexit
import contextlib
import functools
import shutil
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from asyncrl.errors import AsyncrlError
from asyncrl.serving import weight_group
from asyncrl.wire.access import own_token

_lock = asyncio.Lock()
"""No copy changes while it is loaded."""

RECEIVE_SECONDS = 150.0
"""Longest wait for a bucket. The trainer waits less (publishing/from_memory.py), so it knows first."""


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    manager = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    writers = ("update_weights_from_disk", "update_weights_from_distributed", "begin_weight_update")
    tokenizer = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
    return [
        *((f"{manager}.{writer}", _finish, "before") for writer in writers),
        (f"{tokenizer}.update_weights_from_disk", _from_copy, "around"),
        (f"{updater}.init_weights_update_group", join, "around"),
        (f"{updater}.destroy_weights_update_group", leave, "replace"),
        (f"{updater}._receive_bucketed_weights_from_distributed", receive, "replace"),
    ]


# Before weights are written in place, the device finishes the step that was launched before the pause. SGLang
# 0.5.23 pauses in place without waiting for it: with the overlap schedule a forward pass on another
# stream may still read the old weights, and would read some of the new ones. Retracting waits for its result.
def _finish(*_, **__):
    from sglang.srt.platforms import current_platform

    current_platform.synchronize()


# Weights that a server does not load from where they are, but copies to its host before. An update in the
# format PREPARE brings a folder there, from a disk or a URL, or applies a delta to what is there, while the
# server serves. The next update from the same place loads the copy. The copy lies under the temporary folder
# (TMPDIR moves it) and ends with the process; the next server removes that of a killed one. The sender of a
# place compares the digests of what was loaded.
async def _from_copy(original, manager, obj, request=None):
    # Processes that load no weights do without these imports.
    from asyncrl.serving.publication import DELTA
    from asyncrl.serving.sglang.weights import PREPARE

    async with _lock:
        if obj.load_format == PREPARE:
            if manager.server_args.nnodes > 1:
                is_delta = obj.model_path.endswith(DELTA)
                return not is_delta, "of the server's hosts one alone would have the copy", 0
            try:
                await asyncio.to_thread(_copy().prepare, obj.model_path)
            except (AsyncrlError, OSError) as error:
                return False, f"{type(error).__name__}: {error}", 0
            return True, "prepared", 0
        if (folder := _copy().take(obj.model_path)) is not None:
            obj.model_path = str(folder)
        elif obj.model_path.startswith("http://") or obj.model_path.endswith(DELTA):
            return False, f"{obj.model_path} was not prepared, or something else was since", 0
        return await original(manager, obj, request)


@functools.cache
def _copy():
    from asyncrl.serving.delta import HostCopy, own_folder
    from asyncrl.wire.fetch import fetch_folder

    folder, lock = own_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(lock.close)
    (folder / "copy").mkdir()
    return HostCopy(folder / "copy", fetch=lambda url, target: fetch_folder(url, target, token=_key()))


def _key():
    """The run's token in a process of the run, else the key that the user gave the server: both are good for
    the controller's files."""
    from sglang.srt.runtime_context import get_serving

    return own_token() or get_serving().api_key or ""


# In a group of the trainer's a wait for weights ends, and leaving never waits. SGLang 0.5.23 waits for a
# broadcast as long as its group exists. On NCCL its scheduler would then hang for 30 minutes where the
# trainer or another server died, and the watchdog would end the process.
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
