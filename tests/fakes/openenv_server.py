"""A server that speaks OpenEnv's WebSocket protocol, with a game of guessing a number."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web


class OpenEnvServer:
    def __init__(self, *, max_sessions: int = 1) -> None:
        self.url = ""
        self.max_sessions = max_sessions
        self.num_sessions = 0
        self.num_refused = 0
        self.refused = asyncio.Event()
        self.messages: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.sockets: set[web.WebSocketResponse] = set()

    async def answer(self, request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        self.headers.append(dict(request.headers))
        if self.num_sessions >= self.max_sessions:
            self.num_refused += 1
            self.refused.set()
            await connection.send_json(_error("CAPACITY_REACHED", "Server at capacity: 1/1 sessions"))
            await connection.close()
            return connection
        self.num_sessions += 1
        self.sockets.add(connection)
        try:
            await self._play(connection)
        finally:
            self.num_sessions -= 1
            self.sockets.discard(connection)
        return connection

    async def _play(self, connection: web.WebSocketResponse) -> None:
        secret = 0
        async for message in connection:
            if message.type is not WSMsgType.TEXT:
                continue
            asked = json.loads(message.data)
            self.messages.append(asked)
            match asked["type"]:
                case "close":
                    break
                case "reset":
                    secret = asked["data"].get("seed", 5)
                    await connection.send_json(_observation("Guess.", 0.0))
                case "step":
                    await self._step(connection, asked["data"], secret)

    async def _step(self, connection: web.WebSocketResponse, action: dict[str, Any], secret: int) -> None:
        match action["message"]:
            case "hang up":
                await connection.close()
            case "nonsense":
                await connection.send_json({"type": "state", "data": {}})
            case "break":
                await connection.send_json(_error("SESSION_ERROR", "no session"))
            case "invalid":
                await connection.send_json(_error("EXECUTION_ERROR", "not a number"))
            case "too long" | "other fields" as text:
                kinds = ["string_too_long"] if text == "too long" else ["missing", "extra_forbidden"]
                errors = [{"type": kind, "loc": ["message"], "msg": f"it is {kind}"} for kind in kinds]
                await connection.send_json(_error("VALIDATION_ERROR", "Invalid message", errors=errors))
            case text:
                is_right = text == str(secret)
                await connection.send_json(_observation(f"not {text}", float(is_right), done=is_right))


@asynccontextmanager
async def openenv_server(**options: int) -> AsyncIterator[OpenEnvServer]:
    server = OpenEnvServer(**options)
    application = web.Application()
    application.router.add_get("/ws", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def _observation(prompt: str, reward: float, *, done: bool = False) -> dict[str, Any]:
    data = {"observation": {"prompt": prompt}, "reward": reward, "done": done, "metadata": {"n": 1}}
    return {"type": "observation", "data": data}


def _error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}
