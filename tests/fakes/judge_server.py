"""A server of a judge or a reward model, which answers by a script and records what it is asked."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

HELD = "held"
"""In a script: the request is held until the server ends."""
Answer = int | str | dict[str, Any] | list[Any] | tuple[int, str]
"""A status, the text of a completion, a whole reply, or a status with the body of its reply."""


def completion(text: str | None, **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "choices": [{"message": message, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 7},
    }


class JudgeServer:
    """Async context manager. The last answer of the script is repeated."""

    def __init__(self, *script: Answer, judge: Callable[[str], Answer] | None = None) -> None:
        """`judge` answers a question, in place of the script."""
        self._script: Sequence[Answer] = script
        self._judge = judge
        self.requests: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.paths: list[str] = []
        self.num_at_once = 0
        self.most_at_once = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.url = ""
        self._is_over = asyncio.Event()

    async def __aenter__(self) -> "JudgeServer":
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over.set()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.headers.append(request.headers.get("Authorization"))
        self.paths.append(request.path)
        if self._judge is not None:
            answer = self._judge(self.asked())
        else:
            answer = self._script[min(len(self.requests), len(self._script)) - 1]
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            await self.may_answer.wait()
            if answer == HELD:
                await self._is_over.wait()
        finally:
            self.num_at_once -= 1
        if isinstance(answer, int):
            return web.Response(status=answer)
        if isinstance(answer, tuple):
            return web.Response(status=answer[0], text=answer[1])
        reply = completion(answer) if isinstance(answer, str) else answer
        return web.Response(text=json.dumps(reply), content_type="application/json")

    def asked(self) -> str:
        """The text that the judge was last asked with."""
        return str(self.requests[-1]["messages"][-1]["content"])
