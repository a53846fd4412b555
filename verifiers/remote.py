"""A verdict from your own HTTP server. Failures of the server or the network are a FAULT, never a score.

Sends POST {"response": ..., "reference": ...}; expects 200 with {"outcome": "correct" | "wrong" |
"no_answer", and optionally "score", "extracted", "detail", "shaping", "turn_rewards", "spans"}.
{"outcome": "fault"} is taken at its word. It waits rather than computes: `verify_async` runs in the caller's
event loop and takes no worker."""

import asyncio
import json
import reprlib
import urllib.parse
import urllib.request
from types import SimpleNamespace
from typing import Annotated, Any

import aiohttp

from verifiers import strict_json
from verifiers.options import Bounds
from verifiers.storable import storable
from verifiers.verdict import MAX_SHAPING, Outcome, Verdict, as_number, fault

_KEYS = ("outcome", "score", "extracted", "detail", "shaping", "turn_rewards", "spans")
_MAX_REPLY_BYTES = 1_000_000
_MAX_AT_ONCE = 64
"""Requests to the server at one time; others wait, outside of their time limit."""
_RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504}


class RemoteVerifier:
    def __init__(
        self,
        *,
        url: str,
        timeout_seconds: Annotated[float, Bounds(0.01, 3600)] = 10.0,
        attempts: Annotated[int, Bounds(1, 20)] = 3,
        backoff_seconds: Annotated[float, Bounds(0, 60)] = 0.5,
        token: str = "",
    ) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"Option 'url' of verifier 'remote' is {url!r}, expected http:// or https://.")
        self._url = url
        self._timeout = timeout_seconds
        self._attempts = attempts
        self._backoff = backoff_seconds
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._room = asyncio.Semaphore(_MAX_AT_ONCE)

    @property
    def pool_timeout_seconds(self) -> float:
        """For a `weighted` verifier, whose parts run in a worker."""
        waits: float = sum(self._backoff * 2**attempt for attempt in range(self._attempts - 1))
        return self._attempts * self._timeout + waits + 5.0

    def parse_reference(self, raw: object) -> object:
        try:
            json.dumps(raw, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The gold is {raw!r}, expected something that JSON can hold: {error}."
            ) from error
        return raw

    def verify(self, response: str, reference: object) -> Verdict:
        """The verdict; blocks. Not inside an event loop: use verify_async."""
        return asyncio.run(self._grade(response, reference))

    async def verify_async(self, response: str, reference: object) -> Verdict:
        """The verdict, awaited."""
        async with self._room:
            return await self._grade(response, reference)

    async def _grade(self, response: str, reference: object) -> Verdict:
        # A lone surrogate is no UTF-8: escaped, it still is JSON.
        body = json.dumps({"response": response, "reference": reference}).encode("ascii")
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(self._backoff * 2 ** (attempt - 1))
            try:
                return await self._ask(body)
            except (_Refused, aiohttp.TooManyRedirects) as error:
                return fault(f"{self._url} refused the request: {error}")
            except TimeoutError:
                problem = f"no answer in {self._timeout:g} s"
            except (OSError, aiohttp.ClientError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
        return fault(f"{self._url} gave no verdict in {self._attempts} attempts: {problem}"[:1000])

    async def _ask(self, body: bytes) -> Verdict:
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse_to_send_again)
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout), trace_configs=[tracing]
            ) as session,
            session.post(self._url, data=body, headers=self._headers, proxy=_proxy(self._url)) as reply,
        ):
            if reply.status in _RETRIED_STATUS:
                raise ValueError(f"status {reply.status}")
            if not 200 <= reply.status < 300:
                raise _Refused(f"status {reply.status}")
            return read_verdict(await _read_all(reply))


class _Refused(Exception):
    """A reply that another attempt would not change."""


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


async def _read_all(reply: aiohttp.ClientResponse) -> bytes:
    parts = bytearray()
    async for part in reply.content.iter_any():
        parts += part
        if len(parts) > _MAX_REPLY_BYTES:
            raise ValueError(f"the reply has more than {_MAX_REPLY_BYTES} bytes")
    return bytes(parts)


def read_verdict(body: bytes) -> Verdict:
    """The verdict that a reply gives. Raises ValueError for every other reply, whatever it holds."""
    reply = strict_json.loads(body.decode("utf-8"))
    if not isinstance(reply, dict):
        raise ValueError(f"the reply is {_shown(reply)}, expected an object")
    for key in reply:
        if key not in _KEYS:
            raise ValueError(f"the reply has the unknown key {_shown(key)}, expected {', '.join(_KEYS)}")
    if reply.get("outcome") not in list(Outcome):
        raise ValueError(f"outcome is {_shown(reply.get('outcome'))}, expected {', '.join(Outcome)}")
    outcome = Outcome(reply["outcome"])
    score, shaping = reply.get("score"), reply.get("shaping")
    if score is None:
        score = float(outcome is Outcome.CORRECT)
    number = as_number(score, "score", 0.0, 1.0)
    return Verdict(
        outcome,
        None if outcome is Outcome.FAULT else number,
        extracted=_text(reply, "extracted", 4000),
        detail=_text(reply, "detail", 1000) or "",
        shaping=0.0 if shaping is None else as_number(shaping, "shaping", -MAX_SHAPING, MAX_SHAPING),
        turn_rewards=reply.get("turn_rewards"),
        spans=[] if reply.get("spans") is None else reply["spans"],
    )


def _text(reply: dict[str, Any], key: str, limit: int) -> str | None:
    text = reply.get(key)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{key} is {_shown(text)}, expected text")
    return None if text is None else storable(text[:limit])


def _shown(value: object) -> str:
    # Of a reply nested a thousand times deep, a full text could exceed Python's stack.
    return reprlib.repr(value)
