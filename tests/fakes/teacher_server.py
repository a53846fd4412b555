"""A hand-written server that scores texts as SGLang does: each token t has the log-prob -t / 100, at any
temperature, and the likeliest tokens there are t, t + 1, ... with -1, -2, ... Tests steer it: it refuses
texts with a token, or fails the next requests."""

import asyncio
from typing import Any

from aiohttp import web

from asyncrl.serving.sglang.hooks import HOOKS_PATH, INPUT_LOGPROBS


class FakeTeacher:
    """Start with `async with`; `url` is known then."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.failures = 0
        """How many of the next requests fail."""
        self.is_ready = True
        self.refused: int | None = None
        """Texts with this token are refused."""
        self.num_top: int | None = None
        """Likeliest tokens that it tells at each place; None: as many as it is asked for."""
        self.hooks: dict[str, bool] | None = {INPUT_LOGPROBS: True}
        """None without asyncrl's plugin."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeTeacher":
        app = web.Application()
        app.router.add_get("/ready", self._ready)
        app.router.add_get(HOOKS_PATH, self._hooks)
        app.router.add_post("/generate", self._generate)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.may_answer.set()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_ready else 503)

    async def _hooks(self, request: web.Request) -> web.Response:
        return web.json_response({"hooks": self.hooks}, status=404 if self.hooks is None else 200)

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        await self.may_answer.wait()
        if self.failures:
            self.failures -= 1
            return web.Response(status=500, text="it fails")
        tokens, first = body["input_ids"], body["logprob_start_len"]
        if self.refused in tokens:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        entries = [[None if i == first else -t / 100, t, None] for i, t in enumerate(tokens) if i >= first]
        meta: dict[str, Any] = {"input_token_logprobs": entries}
        if (asked := body.get("top_logprobs_num")) is not None and self.num_top != 0:
            size = asked if self.num_top is None else self.num_top
            rows = [[[-1.0 - i, t + i, None] for i in range(size)] for t in tokens[first:]]
            meta["input_top_logprobs"] = [None, *rows[1:]]
        return web.json_response({"text": "", "meta_info": meta})
