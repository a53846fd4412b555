"""Fewer and lighter processes for a server on a CPU: the scheduler is forked and the detokenizer left out.

SGLang spawns each process, because CUDA does not survive a fork: each then imports torch, transformers
and SGLang again, which takes most of the start and most of the memory. Without CUDA they can share one image.
"""

import gc
import multiprocessing

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_serving


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    engine = "sglang.srt.entrypoints.engine"
    HookRegistry.register(f"{engine}._set_envs_and_config", _fork_processes, HookType.AFTER)
    HookRegistry.register(
        f"{engine}.Engine._launch_detokenizer_subprocesses", _launch_needed_detokenizers, HookType.AROUND
    )
    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler._record_scheduler_state_for_paused_engine",
        _sleep_while_paused,
        HookType.AFTER,
    )


def _fork_processes(result, server_args):
    multiprocessing.set_start_method("fork", force=True)
    # The collector, off since sitecustomize.py, does not visit frozen objects: their pages stay shared.
    gc.freeze()
    gc.enable()


def _launch_needed_detokenizers(original, cls, server_args, port_args, run_detokenizer_process_func):
    """None with --skip-tokenizer-init: the scheduler then sends its tokens straight to the HTTP process."""
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
