"""The ends of requests, and of a server: none takes longer than it must, and nothing is left behind."""

import asyncio
import atexit
from functools import partial
from pathlib import Path

POLL_SECONDS = 0.01


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    manager = "sglang.srt.managers.tokenizer_manager"
    return [
        (f"{manager}.TokenizerManager.pause_generation", _abort_in_short_steps, "around"),
        ("sglang.srt.server_args.PortArgs.init_new", _remove_sockets_at_exit, "after"),
        ("sglang.srt.managers.load_snapshot.shm_path_for", _remove_snapshot_at_exit, "after"),
        (f"{manager}.TokenizerManager.sigterm_watchdog", _wait_for_signal, "around"),
        (f"{manager}.SignalHandler.sigterm_handler", _wake, "after"),
        (f"{manager}.TokenizerManager.create_abort_task", _end_by_signal, "around"),
        ("sglang.srt.managers.scheduler.Scheduler.maybe_sleep_on_idle", _stay_awake, "around"),
    ]


# A pause that aborts returns when the last request has ended, not up to a second later: SGLang 0.5.23 looks
# once a second whether its aborts have taken effect; a publish of a small model with rollout.interrupt: abort
# then idles for most of that second.
async def _abort_in_short_steps(original, manager, request):
    if request.mode != "abort":
        return await original(manager, request)
    async with manager.is_pause_cond:
        manager.is_pause = True
        while True:
            # Again and again: a request may have been on its way to the scheduler.
            manager.abort_request(abort_all=True)
            if not await manager.model_update_lock.is_locked():
                return
            await asyncio.sleep(POLL_SECONDS)


# Files that SGLang 0.5.23 leaves in the temporary folder and in shared memory. A killed server leaves them
# still.
def _remove_sockets_at_exit(port_args, *_, **__):
    for address in vars(port_args).values():
        if isinstance(address, str) and address.startswith("ipc://"):
            atexit.register(Path(address.removeprefix("ipc://")).unlink, missing_ok=True)


def _remove_snapshot_at_exit(path, *_):
    atexit.register(Path(path).unlink, missing_ok=True)


# A server ends when SIGTERM comes, not up to eight seconds later: SGLang 0.5.23 looks every five seconds
# whether the signal has come; then its scheduler sleeps for another second, its web server waits for what
# each stream leaves for two, and Python collects garbage. Runs wait for that as they end, and `asyncrl eval`
# after each model.
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
