"""Access to a server of a run: the requests that it answers, and the address where its ranks meet.

Its route GET /asyncrl/hooks says which of the plugin's hooks this SGLang has: SGLang logs a hook that it
cannot apply and serves on without it, and a server without all never serves. The process that listens answers
for all: the others load the same plugin into the same SGLang.
"""

import multiprocessing
import sys
import uuid

from sglang.srt.plugins.hook_registry import HookRegistry

from asyncrl.model.supported import is_bitwise
from asyncrl.recipe.server_options import option_names
from asyncrl.serving.engine.hooks.log_probs import unsampled
from asyncrl.serving.engine.plugin import CPU_ATTENTION
from asyncrl.serving.sglang.health import READY_PATH
from asyncrl.serving.sglang.hooks import HOOKS_PATH
from asyncrl.system.network import listen_at
from asyncrl.wire.access import is_shown, own_token

PROCESS = uuid.uuid4().hex
"""Tells the server from the next one at its address."""


def hooks():
    """Hooks as `plugin.register` takes them. Those of HTTP only where SGLang listens, not in the processes
    that it starts for itself; requests need a token where the server was started with one."""
    found = [
        ("sglang.srt.distributed.bootstrap._resolve_dist_init_method", _stay_here, "around"),
        ("torch.distributed.rendezvous._create_c10d_store", _create, "around"),
    ]
    if multiprocessing.parent_process() is None:
        listen = "sglang.srt.entrypoints.http_server._setup_and_run_http_server"
        found += [
            (listen, _add_route, "before"),
            *([(listen, _listen_closed, "around")] if own_token() else []),
        ]
    return found


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


# A server of a run accepts only requests with the run's token; its readiness path alone is open.
#
# SGLang 0.5.23 has --api-key, but writes it into its log and shows it in the list of processes; it leaves
# open what begins with /health (of which /health_generate generates), /ready or /metrics, each OPTIONS
# request and the websocket /v1/realtime, and with several tokenizer processes everything. Here the token
# comes from the environment and one path is open, READY_PATH (/health would compute a token for any caller).
def _listen_closed(original, *arguments, **named):
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.runtime_context import get_context, get_serving

    if get_serving().tokenizer_worker_num > 1:
        raise ValueError("a server of a run has one tokenizer process: take out --tokenizer-worker-num")
    token = own_token()
    # What SGLang asks of itself at its start, it asks with this key.
    get_context().override("asyncrl", api_key=token)
    # The middleware that was added last sees a request first.
    app.add_middleware(OnlyWithToken, token=token)
    return original(*arguments, **named)


class OnlyWithToken:
    """ASGI middleware: 401 for a request without the token, a closed door for a websocket."""

    def __init__(self, app, *, token):
        self._app = app
        self._token = token

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"this needs the token of the run"})

    def _is_allowed(self, scope):
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == READY_PATH:
            return True
        shown = dict(scope["headers"]).get(b"authorization", b"")
        return is_shown(self._token, shown.decode("latin-1"))


# The store by which the ranks of a server meet (torch's TCPStore) is reached from its own machine alone.
#
# SGLang has one for a server with one rank, too, at the server's address; torch has it listen on every
# network of the machine, and it asks for no key. Only the store of a server on several machines, at
# --dist-init-addr, listens there.
def _stay_here(original, *, dist_port):
    from sglang.srt.runtime_context import get_parallel

    method = original(dist_port=dist_port)
    is_own = method.startswith("tcp://") and not get_parallel().dist_init_addr
    return f"tcp://127.0.0.1:{dist_port}" if is_own else method


def _create(original, hostname, port, rank, world_size, timeout, use_libuv=True):
    from torch.distributed import TCPStore

    own = listen_at(hostname, port) if rank == 0 else None
    if own is None:
        return original(hostname, port, rank, world_size, timeout, use_libuv)
    return TCPStore(
        hostname,
        port,
        world_size,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=own,
        use_libuv=use_libuv,
    )
