"""Health of a server: whether it answers, which weights it holds, how much it takes at once."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.serving.sglang import http
from asyncrl.serving.sglang.control import continue_generation
from asyncrl.serving.sglang.hooks import SGLANG_VERSION
from asyncrl.serving.sglang.http import CALL_SECONDS, PROBE_SECONDS

SPARE_TOKENS = 8
"""Spare tokens of a cache: SGLang 0.5.23 takes no prompt that leaves fewer than 7."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """By the server's own word."""

    cache_tokens: int
    """Tokens in the key-value cache."""
    running_requests: int

    def holds(self, num_tokens: int) -> bool:
        """Whether a trajectory of `num_tokens` can be generated, and resumed at any place."""
        return num_tokens + SPARE_TOKENS <= self.cache_tokens


READY_PATH = "/ready"
"""Says whether a server can serve, and makes it compute nothing. Servers of a run tell it to everybody."""


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether the server answers that it can serve; False while it starts, while paused, or when nothing
    listens."""
    try:
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        async with session.get(f"{url}{READY_PATH}", timeout=timeout) as response:
            return response.status == 200
    except http.FAILURES:
        return False


async def wait_until_ready(
    session: aiohttp.ClientSession, url: str, *, timeout_seconds: float, may_be_paused: bool = False
) -> None:
    """Raises ServerError when the server is not ready within `timeout_seconds`.

    One that `may_be_paused`, by a publish that broke off, is resumed: a paused server is not ready.
    """
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while not await is_ready(session, url):
        if asyncio.get_running_loop().time() > deadline:
            raise ServerError(
                f"{url} was not ready within {timeout_seconds:.0f} s. Is it an SGLang {SGLANG_VERSION} "
                f"server? Raise serving.start_timeout_seconds if it is only slow."
            )
        if may_be_paused:
            # It may as well still be out of reach.
            with contextlib.suppress(ServerError):
                await continue_generation(session, url, timeout_seconds=PROBE_SECONDS)
        await asyncio.sleep(0.1)


async def is_open(url: str) -> bool:
    """Whether the server answers a request without a key. Raises ServerError when it answers nothing."""
    timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
    try:
        async with aiohttp.request("GET", f"{url}/model_info", timeout=timeout) as response:
            return response.status != 401
    except http.FAILURES as error:
        raise ServerError(f"{url}/model_info failed: {type(error).__name__}: {error}") from error


async def weight_version(session: aiohttp.ClientSession, url: str) -> str | None:
    """The label of the weights that the server holds now; None when it does not answer that it can serve.

    While it is paused it is not ready. Its front end alone may outlive its scheduler.
    """
    if not await is_ready(session, url) and not await answers(session, url, timeout_seconds=PROBE_SECONDS):
        return None
    try:
        answer = await http.get_json(session, f"{url}/model_info", timeout_seconds=PROBE_SECONDS)
        return str(answer["weight_version"])
    except (ServerError, KeyError, TypeError):
        return None


async def answers(session: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> bool:
    """Whether the scheduler of the server answers, as it does also while generation is paused."""
    try:
        await _server_info(session, url, timeout_seconds)
    except ServerError:
        return False
    return True


async def capacity(session: aiohttp.ClientSession, url: str) -> Capacity:
    """Asks the server for its capacity."""
    answer = await _server_info(session, url, CALL_SECONDS)
    try:
        running = answer["internal_states"][0]["effective_max_running_requests_per_dp"]
        return Capacity(int(answer["max_total_num_tokens"]), int(running))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ServerError(
            f"{url}/server_info does not say what the server takes at once ({type(error).__name__}: "
            f"{error}). Is it an SGLang {SGLANG_VERSION} server?"
        ) from None


async def _server_info(session: aiohttp.ClientSession, url: str, timeout_seconds: float) -> Mapping[str, Any]:
    """Start arguments of the server and internal states of its scheduler."""
    answer = await http.get_json(session, f"{url}/server_info", timeout_seconds=timeout_seconds)
    if not isinstance(answer, dict):
        raise ServerError(f"{url}/server_info answered {answer!r:.200}, expected an object")
    return answer
