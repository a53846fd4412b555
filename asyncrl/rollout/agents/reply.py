"""Replies of OpenAI's chat completions, whole and in events of a stream, from turns that were sampled."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import Finish
from asyncrl.rollout.agents.request import ChatRequest, written_arguments
from asyncrl.turns.calls import Call, CallFormat
from asyncrl.turns.environment import Message

_OPENINGS = ("<tool_call>", "<|python_tag|>")
"""Texts that open a call."""
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One choice of a completion."""

    content: str
    tool_calls: tuple[dict[str, Any], ...]
    finish: Finish
    num_prompt_tokens: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    def message(self) -> Message:
        """The assistant's message, canonical as `asyncrl.rollout.agents.request.canonical` makes it."""
        found: Message = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            found["tool_calls"] = list(self.tool_calls)
        return found

    def finish_reason(self) -> str:
        if self.finish is Finish.LENGTH:
            return "length"
        return "tool_calls" if self.tool_calls else "stop"


@dataclass(frozen=True, slots=True)
class Replies:
    """Makes the replies of a run."""

    codec: TextCodec
    calls: Callable[[Sequence[dict[str, Any]]], CallFormat]
    """The format of calls for some tools."""

    def of(
        self,
        request: ChatRequest,
        name: str,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        finish: Finish,
        *,
        num_prompt_tokens: int,
    ) -> Reply:
        """The reply that a turn is; `name` is the turn's, from which ids of its calls are made."""
        text = self.content(request, tokens)
        calls: list[Call] = []
        if request.tools:
            # Cut off in the middle of a call, it is text.
            calls = [call for call in self.calls(request.tools).parse(tokens) if not call.is_unfinished]
        readable = [call for call in calls if not call.error]
        if readable and len(readable) == len(calls):
            text = _before_calls(text)
        return Reply(
            text,
            tuple(_tool_call(call, f"{name}:{index}") for index, call in enumerate(readable)),
            finish,
            num_prompt_tokens,
            tuple(tokens),
            tuple(logprobs),
        )

    def content(self, request: ChatRequest, tokens: Sequence[int]) -> str:
        """The text of a turn up to the first stop string of its call, which OpenAI leaves out."""
        text = self.codec.decode(tokens)
        places = [text.find(stop) for stop in request.stop]
        return text[: min((place for place in places if place >= 0), default=None)]

    def logprobs(self, reply: Reply) -> dict[str, Any]:
        """OpenAI's shape of the log-probs of a reply's tokens, its end token included."""
        content = []
        for token, logprob in zip(reply.tokens, reply.logprobs, strict=True):
            text = self.codec.exact_text([token])
            content.append(
                {"token": text, "logprob": _number(logprob), "bytes": list(text.encode()), "top_logprobs": []}
            )
        return {"content": content, "refusal": None}


def completion(
    replies: Replies, request: ChatRequest, found: Sequence[Reply], *, name: str, created: int
) -> dict[str, Any]:
    """The body of an answer without a stream."""
    choices = [
        {
            "index": index,
            "message": _openai_message(reply),
            "finish_reason": reply.finish_reason(),
            "logprobs": replies.logprobs(reply) if request.has_logprobs else None,
        }
        for index, reply in enumerate(found)
    ]
    return {
        **_head(request, "chat.completion", name, created),
        "choices": choices,
        "usage": usage(found),
    }


def usage(found: Sequence[Reply]) -> dict[str, int]:
    prompt = found[0].num_prompt_tokens
    sampled = sum(len(reply.tokens) for reply in found)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def text_event(request: ChatRequest, index: int, text: str, *, name: str, created: int) -> bytes:
    """A part of a reply's text."""
    return event(
        {
            **_head(request, "chat.completion.chunk", name, created),
            "choices": [
                {"index": index, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
            ],
        }
    )


def end_events(
    replies: Replies, request: ChatRequest, index: int, reply: Reply, *, name: str, created: int
) -> Iterator[bytes]:
    """Calls, log-probs and the end of a reply whose text was sent."""
    head = _head(request, "chat.completion.chunk", name, created)
    logprobs = replies.logprobs(reply) if request.has_logprobs else None
    calls = [{"index": i, **call} for i, call in enumerate(reply.tool_calls)]
    if calls:
        delta: dict[str, Any] = {"role": "assistant", "tool_calls": calls}
        yield event({**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
    end = {"index": index, "delta": {}, "finish_reason": reply.finish_reason(), "logprobs": logprobs}
    yield event({**head, "choices": [end]})


def usage_event(request: ChatRequest, found: Sequence[Reply], *, name: str, created: int) -> bytes:
    head = _head(request, "chat.completion.chunk", name, created)
    return event({**head, "choices": [], "usage": usage(found)})


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def _head(request: ChatRequest, kind: str, name: str, created: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{name}",
        "object": kind,
        "created": created,
        "model": request.model,
        "system_fingerprint": None,
    }


def _openai_message(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.tool_calls:
        found["content"] = reply.content or None
        found["tool_calls"] = list(reply.tool_calls)
    return found


def _tool_call(call: Call, name: str) -> dict[str, Any]:
    # The same after a restart, which must find the call again in what the agent says back.
    identity = hashlib.sha256(name.encode()).hexdigest()[:24]
    return {
        "id": f"call_{identity}",
        "type": "function",
        "function": {"name": call.name, "arguments": written_arguments(call.arguments)},
    }


def _number(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes its least log-prob for it."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def _before_calls(text: str) -> str:
    """The text of a turn in front of its calls."""
    places = [text.find(opening) for opening in _OPENINGS]
    place = min((place for place in places if place >= 0), default=0)
    return text[:place].strip()
