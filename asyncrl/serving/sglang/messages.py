"""Generation requests to SGLang 0.5.23 and the replies that it streams: its JSON <-> our types.

Replies are decoded into typed records; what does not fit is a ServerError that quotes it.
"""

import functools
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import aiohttp
import msgspec

from asyncrl.errors import ServerError
from asyncrl.records import Finish, PolicyVersion, SamplingParams
from asyncrl.serving.sglang import http


@dataclass(frozen=True, slots=True)
class Prefix:
    """The request for one trajectory: its prompt and the response tokens confirmed so far."""

    request_id: str
    """Has a fixed length within a run: an engine may abort by prefix of the id."""
    tokens: list[int]
    max_new_tokens: int
    is_greedy: bool = False
    num_computed: int = 0
    """Positions of which earlier requests of the trajectory have said all (`ServedColumn.is_of_context`)."""


class StreamEnd(StrEnum):
    """Why a stream of one request ended; ABORT leaves the trajectory unfinished."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"

    def finish(self) -> Finish | None:
        return None if self is StreamEnd.ABORT else Finish(self.value)


class Span(msgspec.Struct, frozen=True):
    version: PolicyVersion
    start: int
    end: int


class Chunk(msgspec.Struct, frozen=True):
    """New tokens of one request since its previous chunk. Thousands come per second: a frozen dataclass takes
    four times as long to make."""

    request_id: str
    tokens: list[int]
    behavior_logprobs: list[float]
    """NaN where the server sent none."""
    spans: list[Span] | None
    """Spans over all response tokens of this request so far; None when the server does not say yet."""
    end: StreamEnd | None
    num_tokens_so_far: int | None = None
    """Tokens of this request up to this chunk, as the server counts; None when it does not say."""
    num_retractions: int = 0
    """How often the server took this request's cache back so far."""
    columns: dict[str, list[bytes]] = {}
    """Column that was asked for -> the value of each token, behind those of the context."""


Values = tuple[list[bytes], list[float | None] | None]
"""Values of a column in a chunk, and the log-probs that take the place of its own, if any."""


class ServedColumn(Protocol):
    """Seam: values that servers send with tokens, for one feature (`Segment.columns`). Hashable: the columns
    of a run have one decoder."""

    name: ClassVar[str]
    fields: ClassVar[tuple[tuple[str, Any, Any], ...]]
    """Fields of meta_info that it reads: (name, type, default)."""
    title: ClassVar[str]
    """Its values, in errors."""
    reason: ClassVar[str]
    """The keys that ask for it, and what is wrong without it."""
    is_of_context: ClassVar[bool] = False
    """Whether servers say it of positions in front of the first token too, but not of the one that samples
    it."""
    is_of_greedy: ClassVar[bool] = True
    """Whether greedy tokens have it."""

    def ask(self, body: dict[str, Any], prefixes: Sequence[Prefix]) -> None:
        """Adds to the body of a request what asks for it."""

    def read(self, meta: Any, tokens: list[int], surplus: int) -> Values:
        """Its values in a chunk of `tokens`, of which the server says `surplus` more than it sends. Raises
        ServerError."""

    def first(self, values: bytes, count: int) -> bytes:
        """Those of the first `count` tokens, of joined `values`."""


def generate_body(
    prefixes: Sequence[Prefix],
    sampling: SamplingParams,
    *,
    salt: str,
    columns: Sequence[ServedColumn] = (),
) -> dict[str, Any]:
    """One streamed /generate for several trajectories, which asks for `columns`. `salt` keeps prefix caches
    of versions apart."""
    body = {
        "rid": [prefix.request_id for prefix in prefixes],
        "input_ids": [prefix.tokens for prefix in prefixes],
        "sampling_params": [_sampling_params(prefix, sampling) for prefix in prefixes],
        "return_logprob": True,
        "stream": True,
        "cache_salt": [salt] * len(prefixes),
    }
    for column in columns:
        column.ask(body, prefixes)
    return body


def _sampling_params(prefix: Prefix, sampling: SamplingParams) -> dict[str, Any]:
    settings = sampling.settings()
    if prefix.is_greedy:
        # Temperature 0 takes the likeliest token; the rest of the cuts would only cost the server time.
        settings = {name: settings[name] for name in settings.keys() & {"repetition_penalty"}}
    return {
        "temperature": 0.0 if prefix.is_greedy else sampling.temperature,
        "max_new_tokens": prefix.max_new_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "top_p": 1.0,
        "top_k": -1,
        "skip_special_tokens": False,
        **settings,
    }


class _FinishReason(msgspec.Struct):
    type: str
    message: str | None = None
    status_code: int | None = None
    """HTTP status of a request that the server refused or gave up; an abort on demand has none."""


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Meta(msgspec.Struct):
    id: str
    finish_reason: _FinishReason | None
    output_token_logprobs: list[tuple[float | None, int, Any]] = []
    weight_versions: list[_Span] | None = None
    completion_tokens: int | None = None
    num_retractions: int = 0


class _Event(msgspec.Struct):
    output_ids: list[int]
    meta_info: _Meta


@functools.cache
def _decoder(columns: tuple[ServedColumn, ...]) -> "msgspec.json.Decoder[_Event]":
    """Decodes events with the fields that `columns` read."""
    fields = [each for column in columns for each in column.fields]
    meta = msgspec.defstruct("Meta", fields, bases=(_Meta,)) if fields else _Meta
    event: Any = msgspec.defstruct("Event", [("meta_info", meta)], bases=(_Event,)) if fields else _Event
    return msgspec.json.Decoder(event)


def parse_event(data: bytes, columns: tuple[ServedColumn, ...] = ()) -> Chunk:
    """The chunk in the data of one server-sent event. Raises ServerError."""
    try:
        event = _decoder(columns).decode(data)
    except msgspec.ValidationError as error:
        raise ServerError(
            f"a server streamed {data[:300]!r}, expected tokens and meta_info: {error}"
        ) from None
    except msgspec.DecodeError as error:
        raise ServerError(f"a server streamed {data[:300]!r}, which is not JSON: {error}") from None
    meta = event.meta_info
    if meta.finish_reason is not None and meta.finish_reason.status_code is not None:
        # Before its tokens: SGLang may have sampled one that it gives no log-prob.
        raise ServerError(f"request {meta.id} was refused: {meta.finish_reason.message}")
    surplus = 0
    if _is_cut(event):
        # An abort can come between a token's log-prob and the token: it was never sent, so it never was.
        surplus = len(meta.output_token_logprobs) - len(event.output_ids)
        meta.output_token_logprobs = meta.output_token_logprobs[: len(event.output_ids)]
        if meta.completion_tokens is not None:
            meta.completion_tokens -= surplus
    if len(meta.output_token_logprobs) != len(event.output_ids):
        raise ServerError(
            f"request {meta.id}: {len(event.output_ids)} tokens but {len(meta.output_token_logprobs)} "
            f"log-probs; the server must run with --incremental-streaming-output"
        )
    logprobs, told = [entry[0] for entry in meta.output_token_logprobs], {}
    for column in columns:
        told[column.name], own = column.read(meta, event.output_ids, surplus)
        logprobs = logprobs if own is None else own
    if None in logprobs:
        logprobs = [math.nan if logprob is None else logprob for logprob in logprobs]
    return Chunk(
        meta.id,
        event.output_ids,
        logprobs,  # type: ignore[arg-type]  # None is NaN by now
        None if meta.weight_versions is None else [_span(meta.id, s) for s in meta.weight_versions],
        None if meta.finish_reason is None else _end(meta),
        meta.completion_tokens,
        meta.num_retractions,
        told,
    )


def _is_cut(event: _Event) -> bool:
    """Whether an aborted request ends with log-probs of tokens that the server does not send any more."""
    meta, num_tokens = event.meta_info, len(event.output_ids)
    return (
        meta.finish_reason is not None
        and meta.finish_reason.type == StreamEnd.ABORT
        and len(meta.output_token_logprobs) > num_tokens
        and [entry[1] for entry in meta.output_token_logprobs[:num_tokens]] == event.output_ids
    )


def _span(request_id: str, span: _Span) -> Span:
    if not span.version.isdecimal():
        raise ServerError(
            f'request {request_id} got tokens of weight version "{span.version}", expected a policy version: '
            f"another process updated or started this server's weights"
        )
    return Span(int(span.version), span.start, span.end)


def _end(meta: _Meta) -> StreamEnd:
    assert meta.finish_reason is not None
    try:
        return StreamEnd(meta.finish_reason.type)
    except ValueError:
        raise ServerError(
            f"request {meta.id} ended with {meta.finish_reason.type!r}: {meta.finish_reason.message}"
        ) from None


async def stream(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, object],
    columns: tuple[ServedColumn, ...] = (),
) -> AsyncIterator[Chunk]:
    """Chunks of a streamed /generate that asks for `columns`, until every request in it has ended.

    Raises ServerError on a refusal and on a broken connection. It waits as long as the connection stands: a
    request may wait for others on its server.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
    try:
        async with session.post(f"{url}/generate", json=body, timeout=timeout) as response:
            if response.status != 200:
                text = await response.text()
                raise ServerError(f"{url}/generate answered {response.status}: {text[:500]}")
            rest = b""
            # All that has arrived at once: a read for each line costs more than what is done with it.
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue
                    event = line[5:].strip()
                    if event == b"[DONE]":
                        return
                    yield parse_event(event, columns)
    except http.FAILURES as error:
        raise ServerError(f"{url} broke off: {type(error).__name__}: {error}") from error
    raise ServerError(f"{url} closed a stream before its end")
