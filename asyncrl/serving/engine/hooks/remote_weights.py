"""Weights that a server does not load from where they are: it copies the folder to its host before.

An update in the format PREPARE brings a folder there, from a disk or a URL, or applies a delta to what is
there, while the server serves. The next update from the same place loads the copy. The copy lies under the
temporary folder (TMPDIR moves it) and ends with the process; the next server removes that of a killed one.
The sender of a place compares the digests of what was loaded.
"""

import asyncio
import atexit
import functools
import shutil

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.errors import AsyncrlError
from asyncrl.wire.access import own_token

_lock = asyncio.Lock()
"""No copy changes while it is loaded."""


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.update_weights_from_disk",
        _from_copy,
        HookType.AROUND,
    )


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
