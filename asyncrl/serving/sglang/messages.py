"""Generation requests to SGLang 0.5.23 and the replies that it streams: its JSON <-> our types.

Replies are decoded into typed records; what does not fit is a ServerError that quotes it. The endpoint is
in stream.py.
"""

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from asyncrl.errors import ServerError
from asyncrl.model.kept_sets import pack_kept_set
from asyncrl.model.routes import FIRST_ROW
from asyncrl.records import Finish, PolicyVersion, SamplingParams


@dataclass(frozen=True, slots=True)
class Prefix:
    """The request for one trajectory: its prompt and the response tokens confirmed so far."""

    request_id: str
    """Has a fixed length within a run: an engine may abort by prefix of the id."""
    tokens: list[int]
    max_new_tokens: int
    is_greedy: bool = False
    first_row: int = 0
    """The first position whose routes are asked for, where routes are."""


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
    kept: list[bytes] = []
    """The kept set of each token (asyncrl/model/kept_sets.py), whose distribution the log-probs are of;
    empty where they were not asked for."""
    routes: bytes = b""
    """Rows of the positions from the last chunk's on (asyncrl/model/routes.py); empty where they were not
    asked for."""


def generate_body(
    prefixes: Sequence[Prefix],
    sampling: SamplingParams,
    *,
    salt: str,
    has_kept_sets: bool = False,
    has_routes: bool = False,
) -> dict[str, Any]:
    """One streamed /generate for several trajectories. `salt` keeps prefix caches of versions apart.
    `has_kept_sets` asks for the kept set of each sampled token, and for log-probs over it, `has_routes` for
    the routes of all positions from each prefix's first row on."""
    asked = [not prefix.is_greedy for prefix in prefixes]
    return {
        **({"return_sampling_mask": asked} if has_kept_sets else {}),
        **({"return_routed_experts": True} if has_routes else {}),
        "rid": [prefix.request_id for prefix in prefixes],
        "input_ids": [prefix.tokens for prefix in prefixes],
        "sampling_params": [
            _sampling_params(prefix, sampling)
            | ({"custom_params": {FIRST_ROW: prefix.first_row}} if has_routes else {})
            for prefix in prefixes
        ],
        "return_logprob": True,
        "stream": True,
        "cache_salt": [salt] * len(prefixes),
    }


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
    output_token_sampling_mask: list[list[int]] | None = None
    output_token_sampling_logprobs: list[float | None] | None = None
    routed_experts: str | None = None
    weight_versions: list[_Span] | None = None
    completion_tokens: int | None = None
    num_retractions: int = 0


class _Event(msgspec.Struct):
    output_ids: list[int]
    meta_info: _Meta


_EVENT = msgspec.json.Decoder(_Event)


def parse_event(data: bytes) -> Chunk:
    """The chunk in the data of one server-sent event. Raises ServerError."""
    try:
        event = _EVENT.decode(data)
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
    if _is_cut(event):
        # An abort can come between a token's log-prob and the token: it was never sent, so it never was.
        surplus = len(meta.output_token_logprobs) - len(event.output_ids)
        meta.output_token_logprobs = meta.output_token_logprobs[: len(event.output_ids)]
        if meta.completion_tokens is not None:
            meta.completion_tokens -= surplus
        if meta.output_token_sampling_mask is not None:
            meta.output_token_sampling_mask = meta.output_token_sampling_mask[: len(event.output_ids)]
        if meta.output_token_sampling_logprobs is not None:
            meta.output_token_sampling_logprobs = meta.output_token_sampling_logprobs[: len(event.output_ids)]
    if len(meta.output_token_logprobs) != len(event.output_ids):
        raise ServerError(
            f"request {meta.id}: {len(event.output_ids)} tokens but {len(meta.output_token_logprobs)} "
            f"log-probs; the server must run with --incremental-streaming-output"
        )
    logprobs, kept = [entry[0] for entry in meta.output_token_logprobs], list[bytes]()
    if meta.output_token_sampling_mask is not None:
        # The plain log-probs are those of the whole distribution.
        logprobs, kept = _kept_sets(event)
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
        kept,
        _routes(meta),
    )


def _routes(meta: _Meta) -> bytes:
    if not meta.routed_experts:
        return b""
    try:
        return base64.b64decode(meta.routed_experts, validate=True)
    except binascii.Error as error:
        raise ServerError(f"request {meta.id}: its routed_experts are not base64: {error}") from None


def _kept_sets(event: _Event) -> tuple[list[float | None], list[bytes]]:
    """Log-probs over the kept sets, and these. Raises ServerError where they do not fit the tokens."""
    meta, tokens = event.meta_info, event.output_ids
    masks, logprobs = meta.output_token_sampling_mask or [], meta.output_token_sampling_logprobs or []
    if not len(masks) == len(logprobs) == len(tokens):
        raise ServerError(
            f"request {meta.id}: {len(tokens)} tokens but {len(masks)} kept sets and {len(logprobs)} "
            f"log-probs over them"
        )
    try:
        return logprobs, [pack_kept_set(token, mask) for token, mask in zip(tokens, masks, strict=True)]
    except ValueError as error:
        raise ServerError(f"request {meta.id}: {error}") from None


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
