"""A server with a model that judges responses, and a language model behind OpenAI's chat completions."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict, TypeVar, Unpack

from verifiers import strict_json
from verifiers.options import Bounds
from verifiers.posting import Poster, Unanswered, key_headers, with_path
from verifiers.verdict import Verdict, fault
from verifiers.verifier import COUNTERS, VerifierUnavailable

T = TypeVar("T")


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

    async def verdict(self, body: bytes, read: Callable[[bytes], Verdict], *, in_turn: bool) -> Verdict:
        """The verdict that `read` finds in the reply; a FAULT without one. `in_turn`: see ask_in_turn."""
        try:
            return await self.ask(body, read, in_turn=in_turn)
        except (Unanswered, VerifierUnavailable) as error:
            return fault(str(error))

    async def ask(self, body: bytes, read: Callable[[bytes], T], *, in_turn: bool) -> T:
        """The reply as `read` gives it. Raises Unanswered and VerifierUnavailable."""
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

    async def verdict(
        self, note: str, question: str, read: Callable[[str], Verdict], *, in_turn: bool
    ) -> Verdict:
        """The verdict that `read` finds in the reply to `question`; a FAULT without one. `note` is the system
        message; `read` raises ValueError for a reply without a verdict."""
        return await self.server.verdict(self._request(note, question), self._reader(read), in_turn=in_turn)

    async def ask(self, note: str, question: str, read: Callable[[str], T]) -> T:
        """The same for any result, in turn. Raises Unanswered and VerifierUnavailable."""
        return await self.server.ask(self._request(note, question), self._reader(read), in_turn=True)

    def _request(self, note: str, question: str) -> bytes:
        messages = [{"role": "system", "content": note}, {"role": "user", "content": question}]
        return json.dumps({**self._body, "messages": messages, "stream": False}).encode("ascii")

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
