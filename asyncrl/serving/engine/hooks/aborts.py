"""A pause that aborts returns when the last request has ended, not up to a second later.

SGLang 0.5.23 looks once a second whether its aborts have taken effect; a publish of a small model with
rollout.interrupt: abort then idles for most of that second.
"""

import asyncio

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

POLL_SECONDS = 0.01


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.pause_generation",
        _abort_in_short_steps,
        HookType.AROUND,
    )


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
