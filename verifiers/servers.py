"""Servers that verifiers ask: attempts, time limits, proxies; a server with a model that judges responses; a
language model behind OpenAI's chat completions."""

import asyncio
import json
import os
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict, TypeVar, Unpack

import aiohttp

from verifiers import strict_json
from verifiers.plugins import Bounds
from verifiers.storable import storable
from verifiers.verdict import Verdict, fault
from verifiers.verifier import COUNTERS, VerifierUnavailable

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


async def answered(work: Awaitable[Verdict]) -> Verdict:
    """The verdict that a server gives; a FAULT without one."""
    try:
        return await work
    except (Unanswered, VerifierUnavailable) as error:
        return fault(str(error))


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


class ServerOptions(TypedDict, total=False):
    """Options of verifiers that ask a model server; `ModelServer` has their defaults."""

    timeout_seconds: Annotated[float, Bounds(0.01, 3600)]
    deadline_seconds: Annotated[float, Bounds(0.01, 36000)]
    attempts: Annotated[int, Bounds(1, 20)]
    backoff_seconds: Annotated[float, Bounds(0, 60)]
    concurrency: Annotated[int, Bounds(1, 4096)]
    key_variable: str


class ChatOptions(ServerOptions, total=False):
    """Options of judges; `ChatModel` has the defaults of its own."""

    temperature: Annotated[float, Bounds(0, 2)]
    max_tokens: Annotated[int, Bounds(1, 1_000_000)]
    extra: dict[str, Any] | None


class ModelServer:
    """Asks through a Poster, with the server's key; counts the time, and turns failures into faults."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 60.0,
        deadline_seconds: float = 300.0,
        attempts: int = 4,
        backoff_seconds: float = 1.0,
        concurrency: int = 32,
        key_variable: str = "",
    ) -> None:
        """`key_variable` as for key_headers. Raises ValueError for what is no address."""
        poster = Poster(
            url,
            timeout_seconds=timeout_seconds,
            deadline_seconds=deadline_seconds,
            attempts=attempts,
            backoff_seconds=backoff_seconds,
            max_at_once=concurrency,
        )
        self.url = poster.url
        self.longest_seconds = poster.longest_seconds
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self._poster = poster
        self._key_variable = key_variable

    def check_key(self) -> None:
        """Raises VerifierUnavailable where the key is not in the environment."""
        key_headers(self._key_variable)

    async def ask(self, body: bytes, read: Callable[[bytes], T], *, in_turn: bool) -> T:
        """The reply as `read` gives it. `in_turn`: see ask_in_turn. Raises Unanswered and
        VerifierUnavailable."""
        ask = self._poster.ask_in_turn if in_turn else self._poster.ask
        began = time.perf_counter()
        try:
            return await ask(body, key_headers(self._key_variable), read)
        finally:
            self.counters["request_seconds"] += time.perf_counter() - began


class ChatModel:
    def __init__(
        self,
        url: str,
        model: str,
        *,
        temperature: float = 0.0,
        max_tokens: int = 1024,
        extra: Mapping[str, Any] | None = None,
        **server: Unpack[ServerOptions],
    ) -> None:
        """Raises ValueError for what is no address."""
        self.server = ModelServer(with_path(url, "/chat/completions"), **server)
        self.counters = self.server.counters
        sampling = {"model": model, "temperature": temperature, "max_tokens": max_tokens, **(extra or {})}
        # A server may know a setting by another name only: null leaves it out.
        self._body = {name: value for name, value in sampling.items() if value is not None}

    async def ask(self, note: str, question: str, read: Callable[[str], T], *, in_turn: bool = True) -> T:
        """Result of `read` on the reply to `question`; it raises ValueError for one without a result. `note`
        is the system message. Raises Unanswered and VerifierUnavailable."""
        messages = [{"role": "system", "content": note}, {"role": "user", "content": question}]
        body = json.dumps({**self._body, "messages": messages, "stream": False}).encode("ascii")
        return await self.server.ask(body, self._reader(read), in_turn=in_turn)

    def _reader(self, read: Callable[[str], T]) -> Callable[[bytes], T]:
        """Reads a body. Raises ValueError for what is no completion, and Unanswered for a completion without
        a verdict: the same question would be answered the same."""

        def read_body(body: bytes) -> T:
            self.counters["requests"] += 1
            reply = strict_json.loads(body.decode("utf-8"))
            self._count(reply)
            text = _content(reply)
            try:
                return read(text)
            except ValueError as error:
                self.counters["unreadable"] += 1
                raise Unanswered(f"{self.server.url}: {error}; it ends with {text[-80:]!r}") from None

        return read_body

    def _count(self, reply: object) -> None:
        usage = reply.get("usage") if isinstance(reply, Mapping) else None
        for name in ("prompt_tokens", "completion_tokens"):
            number = usage.get(name) if isinstance(usage, Mapping) else None
            if isinstance(number, int) and number > 0:
                self.counters[name] += number


def _content(reply: object) -> str:
    """The text of a completion. Raises ValueError for another reply, and Unanswered for one that was cut
    off."""
    try:
        (choice,) = reply["choices"]  # type: ignore[index]
        content, finish = choice["message"]["content"], choice.get("finish_reason")
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ValueError("the reply is no chat completion with one choice") from None
    if finish == "length":
        raise Unanswered("the judge's reply was cut off: raise the option max_tokens")
    if not isinstance(content, str):
        raise ValueError("the judge's reply has no text")
    return content
