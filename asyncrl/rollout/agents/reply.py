"""Replies from turns that were sampled; how a protocol writes them, and OpenAI's chat completions."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import Finish
from asyncrl.rollout.agents.request import ChatRequest, RequestRefused, read_request, written_arguments
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
        stop = self.stop(request, tokens)
        return text if stop is None else text[: text.index(stop)]

    def stop(self, request: ChatRequest, tokens: Sequence[int]) -> str | None:
        """The first stop string of the call in the text of a turn."""
        text = self.codec.decode(tokens)
        return min((stop for stop in request.stop if stop in text), key=text.index, default=None)

    def logprobs(self, reply: Reply) -> dict[str, Any]:
        """OpenAI's shape of the log-probs of a reply's tokens, its end token included."""
        content = []
        for token, logprob in zip(reply.tokens, reply.logprobs, strict=True):
            text = self.codec.exact_text([token])
            content.append(
                {"token": text, "logprob": _number(logprob), "bytes": list(text.encode()), "top_logprobs": []}
            )
        return {"content": content, "refusal": None}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call, as far as it is known before tokens are sampled."""

    request: ChatRequest
    name: str
    """The call's, from which ids are made."""
    created: int
    """Unix time."""
    num_prompt_tokens: int
    replies: Replies


class Events(Protocol):
    """The events of one stream, as bytes; they are asked for in this order."""

    def begin(self) -> Iterator[bytes]: ...

    def text(self, index: int, text: str) -> Iterator[bytes]:
        """A part of the text of the reply `index`."""
        ...

    def end(self, index: int, reply: Reply) -> Iterator[bytes]:
        """Calls and the end of a reply whose text was sent."""
        ...

    def finish(self, found: Sequence[Reply]) -> Iterator[bytes]: ...

    def refuse(self, error: RequestRefused) -> Iterator[bytes]:
        """In place of the rest."""
        ...


class AgentProtocol(Protocol):
    """How requests and answers look at the door; behind it, all calls are chat completions."""

    path: str
    """Below the endpoint's URL. What lies below it gets errors in this protocol's shape."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Raises RequestRefused."""
        ...

    def whole(self, answer: Answer, found: Sequence[Reply]) -> dict[str, Any]:
        """The body of an answer without a stream."""
        ...

    def events(self, answer: Answer) -> Events: ...

    def error(self, refused: RequestRefused) -> dict[str, Any]:
        """The body of a refusal."""
        ...


class ChatCompletions:
    """OpenAI's chat completions, an `AgentProtocol`."""

    path = "/v1/chat/completions"

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        return read_request(body)

    def whole(self, answer: Answer, found: Sequence[Reply]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": _openai_message(reply),
                "finish_reason": reply.finish_reason(),
                "logprobs": _logprobs(answer, reply),
            }
            for index, reply in enumerate(found)
        ]
        return {**_head(answer, "chat.completion"), "choices": choices, "usage": usage(found)}

    def events(self, answer: Answer) -> "ChatEvents":
        return ChatEvents(answer)

    def error(self, refused: RequestRefused) -> dict[str, Any]:
        return refused.body()


@dataclass(frozen=True, slots=True)
class ChatEvents:
    """`Events` of a chat completion."""

    answer: Answer

    def begin(self) -> Iterator[bytes]:
        yield from ()

    def text(self, index: int, text: str) -> Iterator[bytes]:
        delta = {"role": "assistant", "content": text}
        yield self._event([{"index": index, "delta": delta, "finish_reason": None}])

    def end(self, index: int, reply: Reply) -> Iterator[bytes]:
        calls = [{"index": i, **call} for i, call in enumerate(reply.tool_calls)]
        if calls:
            delta: dict[str, Any] = {"role": "assistant", "tool_calls": calls}
            yield self._event([{"index": index, "delta": delta, "finish_reason": None}])
        end = {"index": index, "delta": {}, "finish_reason": reply.finish_reason()}
        yield self._event([{**end, "logprobs": _logprobs(self.answer, reply)}])

    def finish(self, found: Sequence[Reply]) -> Iterator[bytes]:
        if self.answer.request.has_usage_in_stream:
            yield self._event([], usage=usage(found))
        yield b"data: [DONE]\n\n"

    def refuse(self, error: RequestRefused) -> Iterator[bytes]:
        yield event(error.body())
        yield b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], **fields: Any) -> bytes:
        return event({**_head(self.answer, "chat.completion.chunk"), "choices": choices, **fields})


def usage(found: Sequence[Reply]) -> dict[str, int]:
    prompt = found[0].num_prompt_tokens
    sampled = sum(len(reply.tokens) for reply in found)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def event(content: dict[str, Any], name: str | None = None) -> bytes:
    """A server-sent event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def _logprobs(answer: Answer, reply: Reply) -> dict[str, Any] | None:
    return answer.replies.logprobs(reply) if answer.request.has_logprobs else None


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.name}",
        "object": kind,
        "created": answer.created,
        "model": answer.request.model,
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
