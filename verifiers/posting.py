"""Requests of verifiers that ask a server: attempts, time limits, proxies. Knows nothing of what is asked."""

import asyncio
import json
import os
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import TypeVar

import aiohttp

from verifiers.storable import storable
from verifiers.verifier import VerifierUnavailable

T = TypeVar("T")
MAX_REPLY_BYTES = 1_000_000
_MESSAGE_CHARACTERS = 300
_RETRIED_STATUS = {408, 409, 425, 429, *range(500, 600)}


def key_headers(variable: str) -> dict[str, str]:
    """The header with the key that the environment's `variable` holds; none for "". Raises
    VerifierUnavailable where it holds nothing."""
    if not variable:
        return {}
    key = os.environ.get(variable, "").strip()
    if not key:
        raise VerifierUnavailable(
            f"The environment variable {variable}, which should hold the server's key, is not set."
        )
    return {"Authorization": f"Bearer {key}"}


class Unanswered(Exception):
    """The server gave no answer that can be read; the message says why."""


class _Refused(Exception):
    """A reply that another attempt would not change."""


class Poster:
    """Sends JSON to one address, `attempts` times at most, each with `timeout_seconds` to be answered."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        attempts: int,
        backoff_seconds: float,
        max_at_once: int,
        deadline_seconds: float | None = None,
    ) -> None:
        """The wait before an attempt doubles each time, from `backoff_seconds`. `deadline_seconds` bound all
        attempts together. Others than `max_at_once` requests wait, outside of their time limits. Raises
        ValueError for what is no address."""
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"Option 'url' is {url!r}, expected http:// or https://.")
        self.url = url
        self._timeout = timeout_seconds
        self._attempts = attempts
        self._backoff = backoff_seconds
        self._deadline = deadline_seconds
        self._room = asyncio.Semaphore(max_at_once)
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    @property
    def longest_seconds(self) -> float:
        """The most that `ask` takes."""
        waits: float = sum(self._backoff * 2**attempt for attempt in range(self._attempts - 1))
        longest = self._attempts * self._timeout + waits
        return (longest if self._deadline is None else min(longest, self._deadline)) + 5.0

    async def ask_in_turn(self, body: bytes, headers: Mapping[str, str], read: Callable[[bytes], T]) -> T:
        """As `ask`, when there is room. All calls are of one event loop."""
        async with self._room:
            return await self.ask(body, headers, read)

    async def ask(self, body: bytes, headers: Mapping[str, str], read: Callable[[bytes], T]) -> T:
        """The reply as `read` gives it; a ValueError of it counts as a failed attempt. Raises Unanswered."""
        try:
            async with asyncio.timeout(self._deadline):
                return await self._attempt_all(body, headers, read)
        except TimeoutError:
            raise Unanswered(f"{self.url} gave no verdict in {self._deadline:g} s") from None

    async def _attempt_all(self, body: bytes, headers: Mapping[str, str], read: Callable[[bytes], T]) -> T:
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                await self._sleep(self._backoff * 2 ** (attempt - 1))
            try:
                return read(await self._post(body, headers))
            except (_Refused, aiohttp.TooManyRedirects) as error:
                raise Unanswered(f"{self.url} refused the request: {error}") from error
            except TimeoutError:
                problem = f"no answer in {self._timeout:g} s"
            except (OSError, aiohttp.ClientError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
        raise Unanswered(f"{self.url} gave no verdict in {self._attempts} attempts: {problem}"[:1000])

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse_to_send_again)
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout), trace_configs=[tracing]
            ) as session,
            session.post(
                self.url,
                data=body,
                headers={"Content-Type": "application/json", **headers},
                proxy=_proxy(self.url),
            ) as reply,
        ):
            if reply.status in _RETRIED_STATUS:
                raise ValueError(f"status {reply.status}")
            if not 200 <= reply.status < 300:
                said = _message(await _read_all(reply), headers)
                raise _Refused(f"status {reply.status}{f': {said}' if said else ''}")
            return await _read_all(reply)


def with_path(url: str, path: str) -> str:
    """The address `path` below `url`, which may name it already."""
    base = url.rstrip("/")
    return url if base.endswith(path) else f"{base}{path}"


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for this address (http_proxy, https_proxy, no_proxy)."""
    parts = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


async def _refuse_to_send_again(
    session: aiohttp.ClientSession, context: SimpleNamespace, redirect: aiohttp.TraceRequestRedirectParams
) -> None:
    """307 and 308 ask to send the response elsewhere; after 301, 302 and 303 the verdict is fetched there."""
    if redirect.response.status in (307, 308):
        raise _Refused(f"status {redirect.response.status}")


def _message(body: bytes, headers: Mapping[str, str]) -> str:
    """The beginning of a server's words about a request that it refuses, without the values of `headers`."""
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        while isinstance(found, dict):
            found = next(found[key] for key in ("error", "message", "detail") if key in found)
        text = found if isinstance(found, str) else text
    except (ValueError, StopIteration, RecursionError):
        # It says so in another form.
        pass
    for value in headers.values():
        # A server may repeat the key.
        text = text.replace(value.removeprefix("Bearer "), "***")
    return storable(" ".join(text.split())[:_MESSAGE_CHARACTERS])


async def _read_all(reply: aiohttp.ClientResponse) -> bytes:
    parts = bytearray()
    async for part in reply.content.iter_any():
        parts += part
        if len(parts) > MAX_REPLY_BYTES:
            raise ValueError(f"the reply has more than {MAX_REPLY_BYTES} bytes")
    return bytes(parts)
