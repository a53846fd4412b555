"""Log-probs that a server of SGLang 0.5.23 gives to a text that it did not write, and the tokens that it
finds likeliest there: one prefill, no new token."""

import math
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from asyncrl.errors import RequestRefused, ServerError
from asyncrl.serving.sglang import http
from asyncrl.serving.sglang.hooks import HOOKS_PATH, INPUT_LOGPROBS
from asyncrl.serving.sglang.http import CALL_SECONDS

GENERATE_PATH = "/generate"


TopRow = list[tuple[float, int]]
"""Log-prob and id of the k likeliest tokens at one place, likeliest first."""


class _Meta(msgspec.Struct):
    input_token_logprobs: list[tuple[float | None, int, Any]]
    input_top_logprobs: list[list[tuple[float | None, int, Any]] | None] = []


class _Answer(msgspec.Struct):
    meta_info: _Meta


_ANSWER = msgspec.json.Decoder(_Answer)


async def score(
    session: aiohttp.ClientSession,
    url: str,
    tokens: Sequence[int],
    *,
    first: int,
    temperature: float,
    timeout_seconds: float,
    top_k: int = 0,
) -> tuple[list[float], list[TopRow]]:
    """(log-probs, likeliest tokens) of tokens[first:], each given all before it, of logits / `temperature`;
    `first` >= 1. Natural logarithms; the `top_k` likeliest tokens at the place of each, none for a `top_k` of
    0.

    A server without asyncrl's plugin knows temperature 1 alone (`knows_temperatures`). Raises ServerError,
    and RequestRefused where the server refuses the text, such as one that is longer than its context, or
    finds a token impossible."""
    body = {
        "input_ids": list(tokens),
        "sampling_params": {"max_new_tokens": 0, "temperature": temperature},
        "return_logprob": True,
        # The token before the first: its own entry is empty.
        "logprob_start_len": first - 1,
        **({"top_logprobs_num": top_k} if top_k else {}),
    }
    raw = await http.post(session, url, GENERATE_PATH, body, timeout_seconds=timeout_seconds)
    try:
        meta = _ANSWER.decode(raw).meta_info
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ServerError(f"{url} answered {raw[:300]!r}, expected log-probs of the input: {error}") from None
    found = meta.input_token_logprobs[1:]
    # Their ids are no witness: SGLang calls the last one of a vocabulary 0.
    if len(found) != len(tokens) - first:
        raise ServerError(f"{url} gave {len(found)} log-probs of the {len(tokens) - first} asked for")
    logprobs = [math.nan if logprob is None else logprob for logprob, _, _ in found]
    if not all(map(math.isfinite, logprobs)):
        place = next(i for i, logprob in enumerate(logprobs) if not math.isfinite(logprob))
        raise RequestRefused(
            f"{url} gave the token {tokens[first + place]} the log-prob {logprobs[place]}, expected a number"
        )
    return logprobs, _top_rows(url, meta.input_top_logprobs[1:], len(found), top_k) if top_k else []


def _top_rows(
    url: str, rows: Sequence[list[tuple[float | None, int, Any]] | None], num_tokens: int, top_k: int
) -> list[TopRow]:
    """[num_tokens][top_k]. Raises ServerError for other numbers of them."""
    sizes = {len(row or ()) for row in rows}
    if len(rows) != num_tokens or sizes - {top_k}:
        raise ServerError(
            f"{url} gave {sorted(sizes)} likeliest tokens at {len(rows)} places, expected {top_k} at "
            f"{num_tokens}"
        )
    # What it never samples has -inf, which JSON has no number for.
    return [
        [(-math.inf if logprob is None else logprob, token) for logprob, token, _ in row or ()]
        for row in rows
    ]


async def knows_temperatures(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether the server's log-probs of input tokens are at the temperature that is asked for. Raises
    ServerError where it does not answer."""
    found = await http.get_json(session, f"{url}{HOOKS_PATH}", timeout_seconds=CALL_SECONDS)
    hooks = found.get("hooks") if isinstance(found, dict) else None
    return isinstance(hooks, dict) and hooks.get(INPUT_LOGPROBS) is True
