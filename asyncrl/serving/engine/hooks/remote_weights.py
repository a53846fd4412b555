"""Weights that a server does not find on its own disk: given a URL, it fetches the folder before it loads it.

Owns a folder under the temporary one (TMPDIR moves it) with the last publication that was fetched, which ends
with the process. The digests of the files are compared here, those of the tensors by the sender of the URL.
"""

import asyncio
import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.wire.access import own_token
from asyncrl.wire.files.fetch import FetchFailed, fetch_folder


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.update_weights_from_disk",
        _fetch_first,
        HookType.AROUND,
    )


async def _fetch_first(original, manager, obj, request=None):
    if not obj.model_path.startswith("http://"):
        return await original(manager, obj, request)
    try:
        obj.model_path = str(await asyncio.to_thread(_fetch, obj.model_path))
    except (FetchFailed, OSError) as error:
        return False, f"{type(error).__name__}: {error}", 0
    return await original(manager, obj, request)


def _fetch(url):
    """The folder at `url`, the last part of which names the version."""
    name = url.rpartition("/")[2]
    for other in _folder().iterdir():
        if other.name != name:
            shutil.rmtree(other)
    return fetch_folder(url, _folder() / name, token=_key())


@functools.cache
def _folder():
    folder = Path(tempfile.mkdtemp(prefix="asyncrl-weights-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _key():
    """The run's token in a process of the run, else the key that the user gave the server: both are good for
    the controller's files."""
    from sglang.srt.runtime_context import get_serving

    return own_token() or get_serving().api_key or ""
