"""The endpoint of agents over HTTP, on this machine alone: OpenAI's chat completions, and protocols that are
translated into these at the door.

Each request shows the key of its trajectory. Another one, or that of a trajectory that has ended, gets 401.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web

from asyncrl.rollout.agents.messages import Messages
from asyncrl.rollout.agents.recorder import Answers, Call, CallRecorder, Choice
from asyncrl.rollout.agents.reply import AgentProtocol, Answer, ChatCompletions, Events
from asyncrl.rollout.agents.request import RequestRefused
from asyncrl.rollout.agents.responses import Responses

HOST = "127.0.0.1"
PROTOCOLS: tuple[AgentProtocol, ...] = (ChatCompletions(), Messages(), Responses())
COUNT_PATH = f"{Messages.path}/count_tokens"
MODELS_PATH = "/v1/models"
RETRY_HEADER = "x-stainless-retry-count"
"""How OpenAI's and Anthropic's clients mark a request that they send again."""
LARGEST_BODY = 2**28
"""Bytes: a conversation as long as any context."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AgentEndpoint:
    """Async context manager: listens while it is open."""

    def __init__(self, recorder: CallRecorder, *, model: str) -> None:
        """GET /v1/models lists the roles, or without roles `model`; then requests may name any. Opponents
        follow."""
        self._recorder = recorder
        self._models = [*(recorder.roles or [model]), *recorder.opponents.generators]
        self._runner: web.AppRunner | None = None

    def base_url(self) -> str:
        assert self._runner is not None, "the endpoint listens before its URL is used"
        return f"http://{HOST}:{self._runner.addresses[0][1]}/v1"

    async def __aenter__(self) -> "AgentEndpoint":
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[self._shown_errors])
        for protocol in PROTOCOLS:
            app.router.add_post(protocol.path, partial(self._answer, protocol))
        app.router.add_post(COUNT_PATH, self._count)
        app.router.add_get(MODELS_PATH, self._on_models)
        app.router.add_route("*", "/{path:.*}", self._on_unknown)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _find_session(self, request: web.Request) -> Answers | None:
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        keys = [request.headers.get("x-api-key", ""), key if kind.lower() == "bearer" else ""]
        found = (self._recorder.sessions.get(key.strip()) for key in keys)
        return next(filter(None, found), None)

    def _session(self, request: web.Request) -> Answers:
        session = self._find_session(request)
        if session is None:
            raise RequestRefused(
                "This key is none of a trajectory that is open. Use OPENAI_API_KEY or "
                "ANTHROPIC_API_KEY of the environment.",
                code="invalid_api_key",
                status=401,
            )
        return session

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            body = await request.json()
        except (ValueError, RecursionError) as error:
            raise RequestRefused(f"The body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise RequestRefused("The body is no JSON object.")
        return body

    async def _count(self, request: web.Request) -> web.Response:
        """Tokens of messages as a conversation's first call has them."""
        self._session(request)
        asked = Messages().read(await self._body(request))
        return web.json_response({"input_tokens": len(self._recorder.context(asked))})

    async def _answer(self, protocol: AgentProtocol, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        asked = protocol.read(await self._body(request))
        is_retry = request.headers.get(RETRY_HEADER, "0").strip() not in ("", "0")
        call = session.begin(asked, is_retry=is_retry)
        num_prompt_tokens = call.choices[0].num_prompt_tokens
        answer = Answer(call.request, call.name, call.created, num_prompt_tokens, self._recorder.replies)
        if asked.is_streamed:
            return await self._stream(request, call, protocol.events(answer))
        return web.json_response(protocol.whole(answer, await call.replies()))

    async def _stream(self, request: web.Request, call: Call, events: Events) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        # A call that is refused at once is no stream.
        for choice in call.choices:
            if choice.error is not None:
                raise choice.error
        await response.prepare(request)
        # A client that has gone may ask again, and get what was sampled.
        with contextlib.suppress(ConnectionResetError):
            try:
                await _write(response, events.begin())
                parts = [self._send(response, call, i, each, events) for i, each in enumerate(call.choices)]
                await asyncio.gather(*parts)
                await _write(response, events.finish(await call.replies()))
            except RequestRefused as error:
                self._refuse(request, error)
                await _write(response, events.refuse(error))
            await response.write_eof()
        return response

    async def _send(
        self, response: web.StreamResponse, call: Call, index: int, choice: Choice, events: Events
    ) -> None:
        """The events of one reply. With tools its text comes whole: what is a call shows at its end alone."""
        sent = ""
        if not call.request.tools:
            async for _ in choice.changes():
                text = self._safe_text(call, choice)
                if len(text) > len(sent) and text.startswith(sent):
                    part, sent = text[len(sent) :], text
                    await _write(response, events.text(index, part))
        found = await choice.whole()
        if found.content != sent:
            await _write(response, events.text(index, found.content.removeprefix(sent)))
        await _write(response, events.end(index, found))

    def _safe_text(self, call: Call, choice: Choice) -> str:
        """The text so far that no later token changes."""
        text = self._recorder.replies.content(call.request, choice.tokens())
        held = max(map(len, self._recorder.bounds(call.request).stop.strings), default=1) - 1
        text = text[: len(text) - held] if held else text
        return text.rstrip("\ufffd")

    async def _on_models(self, request: web.Request) -> web.Response:
        self._session(request)
        model = {"object": "model", "created": 0, "owned_by": "asyncrl"}
        data = [{"id": name, **model} for name in self._models]
        return web.json_response({"object": "list", "data": data})

    async def _on_unknown(self, request: web.Request) -> web.Response:
        paths = ", ".join([*(protocol.path for protocol in PROTOCOLS), COUNT_PATH])
        raise RequestRefused(
            f"{request.method} {request.path} is not served. This endpoint has POST {paths}, and GET "
            f"{MODELS_PATH}.",
            status=404,
        )

    @web.middleware
    async def _shown_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestRefused as error:
            refused = error
        except web.HTTPException as error:
            # Of aiohttp itself, such as a body that is too large.
            refused = RequestRefused(HTTPStatus(error.status).phrase, status=error.status)
        self._refuse(request, refused)
        own = (protocol for protocol in PROTOCOLS if request.path.startswith(protocol.path))
        return web.json_response(next(own, PROTOCOLS[0]).error(refused), status=refused.status)

    def _refuse(self, request: web.Request, error: RequestRefused) -> None:
        words = f"{error.status}: {error}"
        if (session := self._find_session(request)) is not None:
            session.refusal = words
        self._recorder.tally.add("agent_refused_calls", words)


async def _write(response: web.StreamResponse, events: Iterable[bytes]) -> None:
    for event in events:
        await response.write(event)
