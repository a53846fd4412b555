"""Removes what SGLang 0.5.23 leaves in the temporary folder and in shared memory when a server ends.

Covers an orderly end (SIGTERM); a killed server leaves its few small files.
"""

import atexit
from pathlib import Path

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    HookRegistry.register("sglang.srt.server_args.PortArgs.init_new", _remove_sockets_at_exit, HookType.AFTER)
    HookRegistry.register(
        "sglang.srt.managers.load_snapshot.shm_path_for", _remove_snapshot_at_exit, HookType.AFTER
    )


def _remove_sockets_at_exit(port_args, *_, **__):
    for address in vars(port_args).values():
        if isinstance(address, str) and address.startswith("ipc://"):
            atexit.register(Path(address.removeprefix("ipc://")).unlink, missing_ok=True)


def _remove_snapshot_at_exit(path, *_):
    atexit.register(Path(path).unlink, missing_ok=True)
