"""OpenAI's Responses: requests become those of chat completions, and replies are written as responses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncrl.records import Finish
from asyncrl.rollout.agents.reply import Answer, Reply, event
from asyncrl.rollout.agents.request import (
    ChatRequest,
    RequestRefused,
    constrains,
    items,
    read_request,
    whole_number,
)

_NOT_SERVED = {
    "previous_response_id": "this endpoint keeps no responses. Give the whole conversation in input.",
    "conversation": "this endpoint keeps no conversations. Give the whole conversation in input.",
    "background": "a response is answered where it is asked for.",
    "prompt": "this endpoint keeps no prompts. Give the text in instructions and input.",
}
"""Parameter -> why it is refused."""
_LOGPROBS = "message.output_text.logprobs"


class Responses:
    """An `asyncrl.rollout.agents.reply.AgentProtocol`."""

    path = "/v1/responses"

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        for name, why in _NOT_SERVED.items():
            if body.get(name):
                raise RequestRefused(f"{name} is not served: {why}", param=name, code="unsupported_parameter")
        text = body.get("text")
        form = text.get("format") if isinstance(text, Mapping) else None
        if isinstance(form, Mapping) and form.get("type") not in (None, "text"):
            raise constrains("text.format")
        instructions = body.get("instructions")
        system = [{"role": "system", "content": instructions}] if instructions else []
        choice = body.get("tool_choice")
        return read_request(
            {
                **body,
                "messages": [*system, *_chat_messages(body.get("input"))],
                "tools": [_chat_tool(tool, f"tools[{i}]") for i, tool in enumerate(items(body, "tools"))],
                "tool_choice": "required" if isinstance(choice, Mapping) else choice,
                "max_tokens": whole_number(body, "max_output_tokens"),
                "logprobs": _LOGPROBS in items(body, "include"),
                "n": None,
            }
        )

    def whole(self, answer: Answer, found: Sequence[Reply]) -> dict[str, Any]:
        (reply,) = found
        is_cut = reply.finish is Finish.LENGTH
        usage = {
            "input_tokens": reply.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": len(reply.tokens),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.num_prompt_tokens + len(reply.tokens),
        }
        return {
            **_head(answer),
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": _items(answer, reply),
            "usage": usage,
        }

    def events(self, answer: Answer) -> "ResponseEvents":
        return ResponseEvents(answer)

    def error(self, refused: RequestRefused) -> dict[str, Any]:
        return refused.body()


class ResponseEvents:
    """`asyncrl.rollout.agents.reply.Events` of a response."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._num_sent = 0
        self._has_text = False
        self._place = {"item_id": _message_id(answer), "output_index": 0, "content_index": 0}

    def begin(self) -> Iterator[bytes]:
        response = {**_head(self._answer), "status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def text(self, index: int, text: str) -> Iterator[bytes]:
        if not self._has_text:
            yield from self._open_text()
        yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def _open_text(self) -> Iterator[bytes]:
        self._has_text = True
        item = {**_message(self._answer, []), "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place, part=_text_part("", []))

    def end(self, index: int, reply: Reply) -> Iterator[bytes]:
        output = _items(self._answer, reply)
        if output[0]["type"] == "message" and not self._has_text:
            yield from self._open_text()
        for place, item in enumerate(output):
            if item["type"] == "message":
                (part,) = item["content"]
                text = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._event("response.output_text.done", **self._place, **text)
                yield self._event("response.content_part.done", **self._place, part=part)
            else:
                opened = {**item, "arguments": "", "status": "in_progress"}
                where, name = (
                    {"item_id": item["id"], "output_index": place},
                    "response.function_call_arguments",
                )
                said = item["arguments"]
                yield self._event("response.output_item.added", output_index=place, item=opened)
                yield self._event(f"{name}.delta", **where, delta=said)
                yield self._event(f"{name}.done", **where, name=item["name"], arguments=said)
            yield self._event("response.output_item.done", output_index=place, item=item)

    def finish(self, found: Sequence[Reply]) -> Iterator[bytes]:
        response = Responses().whole(self._answer, found)
        yield self._event(f"response.{response['status']}", response=response)

    def refuse(self, error: RequestRefused) -> Iterator[bytes]:
        fields = {"code": error.code, "message": str(error), "param": error.param}
        yield self._event("error", **fields, **error.body())

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._num_sent += 1
        return event({"type": kind, "sequence_number": self._num_sent - 1, **fields}, kind)


def _chat_messages(given: Any) -> list[dict[str, Any]]:
    """The messages of a chat that the input is. Raises RequestRefused."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise RequestRefused("input must be text or a list of at least one item.", param="input")
    found: list[dict[str, Any]] = []
    for i, item in enumerate(given):
        kind = item.get("type") if isinstance(item, Mapping) else None
        match "message" if isinstance(item, Mapping) and kind is None and "role" in item else kind:
            case "message":
                found.append({"role": item.get("role"), "content": item.get("content")})
            case "function_call":
                # The message that the model wrote in front of its calls is the same turn.
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant", "content": ""})
                found[-1].setdefault("tool_calls", []).append(
                    {"id": item.get("call_id"), "type": "function", "function": item}
                )
            case "function_call_output":
                output = item.get("output")
                found.append({"role": "tool", "content": output, "tool_call_id": item.get("call_id")})
            # Of other models: this endpoint writes none.
            case "reasoning":
                continue
            case _:
                raise RequestRefused(
                    f"input[{i}] is an item of the type {kind!r}: this endpoint takes messages, function "
                    f"calls and their outputs.",
                    param="input",
                )
    return found


def _chat_tool(tool: Any, param: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise RequestRefused(
            f"{param} is of the type {kind!r}: this endpoint takes functions, which the agent runs itself.",
            param="tools",
        )
    names = ("name", "description", "parameters", "strict")
    return {
        "type": "function",
        "function": {name: tool[name] for name in names if tool.get(name) is not None},
    }


def _items(answer: Answer, reply: Reply) -> list[dict[str, Any]]:
    """The output: a message, unless calls stand for themselves, and the calls."""
    logprobs = answer.replies.logprobs(reply)["content"] if answer.request.has_logprobs else []
    found = [_message(answer, [_text_part(reply.content, logprobs)])]
    if reply.tool_calls and not reply.content:
        found.clear()
    status = "incomplete" if reply.finish is Finish.LENGTH else "completed"
    calls = [
        {
            "type": "function_call",
            "id": f"fc_{call['id'].removeprefix('call_')}",
            "call_id": call["id"],
            **call["function"],
        }
        for call in reply.tool_calls
    ]
    return [{**item, "status": status} for item in [*found, *calls]]


def _message(answer: Answer, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "id": _message_id(answer), "role": "assistant", "content": content}


def _message_id(answer: Answer) -> str:
    return f"msg_{answer.name}"


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.name}",
        "object": "response",
        "created_at": answer.created,
        "model": answer.request.model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
    }
