"""A server ends when SIGTERM comes, not up to eight seconds later.

SGLang 0.5.23 looks every five seconds whether the signal has come; then its scheduler sleeps for another
second, its web server waits for what each stream leaves for two, and Python collects garbage. Runs wait for
that as they end, and `asyncrl eval` after each model.
"""

import asyncio
import atexit
import gc
from functools import partial


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    manager = "sglang.srt.managers.tokenizer_manager"
    HookRegistry.register(f"{manager}.TokenizerManager.sigterm_watchdog", _wait_for_signal, HookType.AROUND)
    HookRegistry.register(f"{manager}.SignalHandler.sigterm_handler", _wake, HookType.AFTER)
    HookRegistry.register(f"{manager}.TokenizerManager.create_abort_task", _end_by_signal, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.maybe_sleep_on_idle", _stay_awake, HookType.AROUND
    )
    atexit.register(gc.freeze)


async def _wait_for_signal(original, manager):
    if not manager.gracefully_exit:
        await _signal_of(manager).wait()
    await original(manager)


def _signal_of(manager):
    if not hasattr(manager, "sigterm_came"):
        manager.sigterm_came = asyncio.Event()
    return manager.sigterm_came


def _wake(_, handler, *__, **___):
    # The loop calls the handler, so this is the event's own thread.
    _signal_of(handler.tokenizer_manager).set()


def _end_by_signal(original, manager, request):
    after_stream = original(manager, request)
    for task in after_stream.tasks:
        task.func = partial(_run_until, _signal_of(manager), task.func)
    return after_stream


async def _run_until(event, work):
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(work())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


def _stay_awake(original, scheduler):
    if not scheduler.gracefully_exit:
        original(scheduler)
