"""A server of a run accepts only requests with the run's token; its readiness path alone is open.

SGLang 0.5.23 has --api-key, but writes it into its log and shows it in the list of processes; it leaves open
what begins with /health (of which /health_generate generates), /ready or /metrics, each OPTIONS request and
the websocket /v1/realtime, and with several tokenizer processes everything. Here the token comes from the
environment and one path is open, READY_PATH (/health would compute a token for any caller).
"""

import multiprocessing

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.serving.sglang.health import READY_PATH
from asyncrl.wire.access import is_shown, own_token


def install() -> None:
    """Registers the hook where SGLang listens: not in the processes that it starts for itself, nor where the
    server was started without a token."""
    if own_token() and multiprocessing.parent_process() is None:
        HookRegistry.register(
            "sglang.srt.entrypoints.http_server._setup_and_run_http_server", _listen_closed, HookType.AROUND
        )


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
