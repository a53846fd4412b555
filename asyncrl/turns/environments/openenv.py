"""Environments of OpenEnv servers (github.com/huggingface/OpenEnv), over the WebSocket /ws.

Messages are {"type": "reset" | "step" | "close", "data": ...}; answers {"type": "observation", "data":
{"observation": {...}, "reward": number, "done": truth value}} or {"type": "error", "data": {"message": ...,
"code": ...}}.
The server's HTTP /reset and /step build a new environment at each call, so that episodes need /ws."""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp

from asyncrl.turns.environment import End, EnvironmentUnavailable, Observation, Recovery
from verifiers.plugins import Bounds
from verifiers.storable import storable

CAPACITY_REACHED = "CAPACITY_REACHED"
OF_THE_ACTION = frozenset(["VALIDATION_ERROR", "EXECUTION_ERROR"])
"""Codes of errors that an action may cause: the model reads them."""
OF_THE_OPTIONS = frozenset(["missing", "extra_forbidden"])
"""Kinds of a VALIDATION_ERROR that no text causes: the action has other fields than the server's."""
FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.1, 5.0
MAX_MESSAGE_BYTES = 16 << 20
PING_SECONDS = 6.0
"""A server that does not answer a ping is gone: noticed sooner than a turn is over its default limit."""
CONNECT_SECONDS = 10.0


class ServerError(Exception):
    """An answer of the type error."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.code = str(data.get("code"))
        self.errors = [error for error in data.get("errors") or [] if isinstance(error, dict)]
        """Reasons of a VALIDATION_ERROR, as pydantic lists them."""
        words = [str(data.get("message")), *(f"{_place(error)}: {error.get('msg')}" for error in self.errors)]
        super().__init__("; ".join(words))


def _place(error: Mapping[str, Any]) -> str:
    return ".".join(map(str, error.get("loc") or ()))


class OpenEnv:
    """One session of a server per trajectory."""

    def __init__(
        self,
        *,
        url: str,
        action_field: str = "message",
        action: dict[str, Any] | None = None,
        observation_field: str = "",
        reset: dict[str, Any] | None = None,
        reset_columns: tuple[str, ...] = (),
        opening: Literal["observation", "prompt"] = "observation",
        score: Literal["last", "sum"] = "last",
        full_reward: Annotated[float, Bounds(1e-9)] = 1.0,
        wait_seconds: Annotated[float, Bounds(0)] = 45.0,
        token_file: str = "",
        recovery: Literal["replayable", "neither"] = "neither",
    ) -> None:
        """`url`: of the server, such as http://localhost:8000. An action is `action` with the turn's text as
        `action_field`. The model reads the `observation_field` of an observation; without one, all of it as
        JSON. `reset` and the row's `reset_columns` are sent at the start, whose observation opens the
        conversation unless `opening` is prompt. The score is the last reward, or the sum, divided by
        `full_reward`, within [0, 1]. A server without room is waited for, `wait_seconds` at most.
        `token_file` holds a token to show, as a bearer. `recovery`: replayable where the same row and turns
        always get the same answers."""
        if not url.startswith(("http://", "https://", "ws://", "wss://")):
            raise ValueError(
                f"Option 'url' of environment 'openenv' is {url!r}, expected http://... or ws://..."
            )
        self.recovery = Recovery(recovery)
        self._url = url.rstrip("/").removesuffix("/ws") + "/ws"
        self._action_field, self._action = action_field, action or {}
        self._observation_field = observation_field
        self._reset, self._reset_columns = reset or {}, reset_columns
        self._opens = opening == "observation"
        self._sums, self._full_reward = score == "sum", full_reward
        self._wait_seconds = wait_seconds
        self._token_file = token_file
        self._total = 0.0
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None

    async def start(self, row: Mapping[str, Any]) -> str | None:
        missing = [column for column in self._reset_columns if column not in row]
        if missing:
            raise ValueError(f"the row has no column {missing[0]!r} (option reset_columns of openenv)")
        self._total = 0.0
        asked = {**self._reset, **{column: row[column] for column in self._reset_columns}}
        found = await self._begin(asked)
        return self._words(found) if self._opens else None

    async def step(self, text: str) -> Observation | End:
        try:
            found = await self._ask("step", {**self._action, self._action_field: storable(text)})
        except ServerError as error:
            # Those that the server lacks in the action, or does not know.
            if fields := [_place(each) for each in error.errors if each.get("type") in OF_THE_OPTIONS]:
                raise ValueError(
                    f"{self._url} takes actions with other fields (options action_field and action of "
                    f"openenv), see {', '.join(fields)}: {error}"
                ) from error
            if error.code in OF_THE_ACTION:
                return Observation(f"Error: {error}")
            raise EnvironmentUnavailable(f"{self._url} answered {error.code}: {error}") from error
        reward = found.get("reward")
        reward = float(reward) if isinstance(reward, int | float) else None
        self._total = self._total + (reward or 0.0) if self._sums else (reward or 0.0)
        if found.get("done"):
            score = min(1.0, max(0.0, self._total / self._full_reward))
            return End(score, f"{self._url} gives {self._total:g} of {self._full_reward:g}")
        return Observation(self._words(found), reward=reward)

    async def close(self) -> None:
        if self._socket is not None:
            # The server frees its session at once.
            await self._socket.send_str(json.dumps({"type": "close"}))
        await self._hang_up()

    async def _begin(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The observation of a reset, once the server has room. Raises EnvironmentUnavailable."""
        deadline, wait = time.monotonic() + self._wait_seconds, FIRST_WAIT_SECONDS
        while True:
            try:
                await self._connect()
                return await self._ask("reset", asked)
            except ServerError as error:
                if error.code != CAPACITY_REACHED:
                    raise EnvironmentUnavailable(f"{self._url} answered {error.code}: {error}") from error
                reason = f"has no room: {error}"
            except (EnvironmentUnavailable, aiohttp.ClientError, OSError) as error:
                reason = f"cannot be reached: {error}"
            await self._hang_up()
            if time.monotonic() + wait > deadline:
                raise EnvironmentUnavailable(
                    f"{self._url} {reason}. It was waited for {self._wait_seconds:g} s (option wait_seconds)"
                )
            # Trajectories that wait together do not come back together.
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, MAX_WAIT_SECONDS)

    async def _connect(self) -> None:
        if self._socket is not None:
            return
        headers = {}
        if self._token_file:
            headers["Authorization"] = f"Bearer {Path(self._token_file).read_text().strip()}"
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        )
        self._answers = asyncio.Queue()
        self._socket = await self._session.ws_connect(
            self._url, max_msg_size=MAX_MESSAGE_BYTES, heartbeat=PING_SECONDS
        )
        self._reader = asyncio.get_running_loop().create_task(self._read(self._socket, self._answers))

    async def _read(
        self, connection: aiohttp.ClientWebSocketResponse, answers: "asyncio.Queue[dict[str, Any] | None]"
    ) -> None:
        """Reads all the time: the server's pings are answered while the model writes."""
        try:
            async for message in connection:
                if message.type is aiohttp.WSMsgType.TEXT:
                    answers.put_nowait(json.loads(message.data))
        finally:
            answers.put_nowait(None)

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of the answer. Raises ServerError, and EnvironmentUnavailable where the server is gone."""
        if self._socket is None:
            raise EnvironmentUnavailable(f"the connection to {self._url} is closed")
        try:
            await self._socket.send_str(json.dumps({"type": kind, "data": data}))
        except (ConnectionError, aiohttp.ClientError) as error:
            # What it said before it hung up says more.
            if self._answers.empty():
                raise EnvironmentUnavailable(f"{self._url} is gone: {error}") from error
        answer = await self._answers.get()
        if answer is None:
            raise EnvironmentUnavailable(f"{self._url} has closed the connection")
        found = answer.get("data")
        match answer.get("type"), found:
            case "observation", dict():
                return found
            case "error", dict():
                raise ServerError(found)
        raise EnvironmentUnavailable(f"{self._url} answered {str(answer)[:200]!r}, expected an observation")

    async def _hang_up(self) -> None:
        reader, self._reader = self._reader, None
        connection, self._socket = self._socket, None
        session, self._session = self._session, None
        if reader is not None:
            reader.cancel()
        if connection is not None:
            await connection.close()
        if session is not None:
            await session.close()

    def _words(self, found: Mapping[str, Any]) -> str:
        observation = found.get("observation")
        if self._observation_field:
            if not isinstance(observation, dict) or self._observation_field not in observation:
                raise ValueError(
                    f"the observation has no field {self._observation_field!r} (option observation_field of "
                    f"openenv): {str(observation)[:200]}"
                )
            observation = observation[self._observation_field]
        return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
