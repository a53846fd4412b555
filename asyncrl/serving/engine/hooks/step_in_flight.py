"""Before weights are written in place, the device finishes the step that was launched before the pause.

SGLang 0.5.23 pauses in place without waiting for it: with the overlap schedule a forward pass on another
stream may still read the old weights, and would read some of the new ones. Retracting waits for its result.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
WRITERS = (
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "begin_weight_update",
)


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    for name in WRITERS:
        HookRegistry.register(f"{MANAGER}.{name}", _finish, HookType.BEFORE)


def _finish(*_, **__):
    from sglang.srt.platforms import current_platform

    current_platform.synchronize()
