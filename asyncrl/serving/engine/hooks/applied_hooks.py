"""GET /asyncrl/hooks: which of the plugin's hooks this SGLang has. A server without all never serves.

SGLang logs a hook that it cannot apply and serves on without it. The process that listens answers for all:
the others load the same plugin into the same SGLang.
"""

import multiprocessing
import sys
import uuid

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.model.supported import is_bitwise
from asyncrl.recipe.server_options import option_names
from asyncrl.serving.engine.hooks.unsampled import unsampled
from asyncrl.serving.engine.plugin import CPU_ATTENTION
from asyncrl.serving.sglang.hooks import HOOKS_PATH

PROCESS = uuid.uuid4().hex
"""Tells the server from the next one at its address."""


def install() -> None:
    """Registers the hook where SGLang listens, not in the processes that it starts for itself."""
    if multiprocessing.parent_process() is None:
        HookRegistry.register(
            "sglang.srt.entrypoints.http_server._setup_and_run_http_server", _add_route, HookType.BEFORE
        )


def _add_route(*_, **__):
    from sglang.srt.entrypoints.http_server import app

    app.add_api_route(HOOKS_PATH, describe, methods=["GET"])


def describe():
    """SGLang's version, the process and its options, the ranks that hold weights, the tokens that are never
    sampled, the largest kept set that it tells, whether its kernels are those of model.bitwise_agreement, and
    each hook's target with whether it was applied."""
    import sglang
    from sglang.srt.runtime_context import get_parallel, get_server_args

    return {
        "sglang": sglang.__version__,
        "process": PROCESS,
        "options": option_names(sys.argv[1:]),
        "num_ranks": get_parallel().tp_size,
        "unsampled": str(unsampled()),
        "bitwise": is_bitwise() and _attends_as_trainers(get_server_args()),
        "most_kept": get_server_args().sampling_mask_max_tokens,
        "hooks": {target: target in HookRegistry._patched for target in HookRegistry._hooks},
    }


def _attends_as_trainers(options):
    """Whether the attention is asyncrl's own, which exists on a CPU alone and brings the other kernels."""
    named = (
        options.attention_backend,
        options.prefill_attention_backend,
        options.decode_attention_backend,
    )
    return {name for name in named if name is not None} == {CPU_ATTENTION}
