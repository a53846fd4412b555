"""Anthropic's Messages: requests become those of chat completions, and replies are written as messages."""

import json
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

_NOT_SERVED = ("mcp_servers", "container", "context_management")
"""Parameters that ask for something besides the model."""
_IGNORED_BLOCKS = ("thinking", "redacted_thinking")
"""Blocks of other models' thoughts: this endpoint writes none."""


class Messages:
    """An `asyncrl.rollout.agents.reply.AgentProtocol`."""

    path = "/v1/messages"

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        for name in _NOT_SERVED:
            if body.get(name):
                raise RequestRefused(
                    f"{name} is not served: this endpoint samples the model alone.", param=name
                )
        for holder, key in (("output_config", "format"), ("output_format", "type")):
            asked = body.get(holder)
            if isinstance(asked, Mapping) and asked.get(key):
                raise constrains(f"{holder}.{key}")
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestRefused("messages must be a list of at least one message.", param="messages")
        choice = body.get("tool_choice")
        choice = choice.get("type") if isinstance(choice, Mapping) else choice
        system = _content(body["system"], "system") if body.get("system") else []
        return read_request(
            {
                **body,
                "messages": [
                    *_chat_messages("system", system, "system"),
                    *(
                        chat
                        for i, each in enumerate(messages)
                        for chat in _read_message(each, f"messages[{i}]")
                    ),
                ],
                "tools": [_chat_tool(tool, f"tools[{i}]") for i, tool in enumerate(items(body, "tools"))],
                "tool_choice": "required" if choice in ("any", "tool") else choice,
                "stop": body.get("stop_sequences"),
                "max_tokens": whole_number(body, "max_tokens"),
                "n": None,
            }
        )

    def whole(self, answer: Answer, found: Sequence[Reply]) -> dict[str, Any]:
        (reply,) = found
        blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.content}] if reply.content else []
        blocks += [{**_tool_use(call), "input": json.loads(_arguments(call))} for call in reply.tool_calls]
        return {
            **_head(answer),
            "content": blocks,
            **_stopped(answer, reply),
            "usage": {"input_tokens": reply.num_prompt_tokens, "output_tokens": len(reply.tokens)},
        }

    def events(self, answer: Answer) -> "MessageEvents":
        return MessageEvents(answer)

    def error(self, refused: RequestRefused) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}
        kind = kinds.get(refused.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": str(refused)}, "request_id": None}


class MessageEvents:
    """`asyncrl.rollout.agents.reply.Events` of a message."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._has_text = False

    def begin(self) -> Iterator[bytes]:
        usage = {"input_tokens": self._answer.num_prompt_tokens, "output_tokens": 0}
        started: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message={**_head(self._answer), **started})

    def text(self, index: int, text: str) -> Iterator[bytes]:
        if not self._has_text:
            self._has_text = True
            yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def end(self, index: int, reply: Reply) -> Iterator[bytes]:
        if self._has_text:
            yield _event("content_block_stop", index=0)
        for place, call in enumerate(reply.tool_calls, start=int(self._has_text)):
            part = {"type": "input_json_delta", "partial_json": _arguments(call)}
            yield _event("content_block_start", index=place, content_block={**_tool_use(call), "input": {}})
            yield _event("content_block_delta", index=place, delta=part)
            yield _event("content_block_stop", index=place)

    def finish(self, found: Sequence[Reply]) -> Iterator[bytes]:
        (reply,) = found
        usage = {"input_tokens": reply.num_prompt_tokens, "output_tokens": len(reply.tokens)}
        yield _event("message_delta", delta=_stopped(self._answer, reply), usage=usage)
        yield _event("message_stop")

    def refuse(self, error: RequestRefused) -> Iterator[bytes]:
        yield event(Messages().error(error), "error")


def _read_message(message: Any, param: str) -> list[dict[str, Any]]:
    """Messages of a chat that one of Anthropic's is. Raises RequestRefused."""
    if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant", "system"):
        raise RequestRefused(f"{param} must be an object with the role user or assistant.", param=param)
    return _chat_messages(message["role"], _content(message.get("content"), f"{param}.content"), param)


def _chat_messages(role: str, blocks: Sequence[Mapping[str, Any]], param: str) -> list[dict[str, Any]]:
    """Messages of a chat: the text and calls of an assistant are one; each result of a tool is one."""
    found: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        match block.get("type"):
            case "text" if isinstance(block.get("text"), str):
                _last(found, role)["content"] += block["text"]
            case "tool_use" if role == "assistant":
                function = {"name": block.get("name"), "arguments": block.get("input")}
                _last(found, role).setdefault("tool_calls", []).append(
                    {"id": block.get("id"), "type": "function", "function": function}
                )
            case "tool_result" if role == "user":
                texts = _content(block.get("content") or "", f"{param}.content[{i}].content")
                (result,) = _chat_messages("tool", texts, param) or [{"role": "tool", "content": ""}]
                found.append({**result, "tool_call_id": block.get("tool_use_id")})
            case kind if kind not in _IGNORED_BLOCKS:
                raise RequestRefused(
                    f"{param}.content[{i}] is a block of the type {kind!r} in the role {role!r}: this "
                    f"endpoint takes text, calls of tools and their results.",
                    param=f"{param}.content",
                )
    # An empty text is a message, too.
    return found or ([] if role in ("system", "tool") else [{"role": role, "content": ""}])


def _last(found: list[dict[str, Any]], role: str) -> dict[str, Any]:
    """The last message, where it is of `role`; else another one."""
    if not found or found[-1]["role"] != role:
        found.append({"role": role, "content": ""})
    return found[-1]


def _content(content: Any, param: str) -> list[Mapping[str, Any]]:
    """Blocks; a text is one. Raises RequestRefused."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise RequestRefused(f"{param} must be text or a list of blocks.", param=param)
    return content


def _chat_tool(tool: Any, param: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type") not in (None, "custom"):
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise RequestRefused(
            f"{param} is of the type {kind!r}: this endpoint takes tools with an input_schema, which the "
            f"agent runs itself.",
            param="tools",
        )
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.name}",
        "type": "message",
        "role": "assistant",
        "model": answer.request.model,
    }


def _stopped(answer: Answer, reply: Reply) -> dict[str, Any]:
    stop = answer.replies.stop(answer.request, reply.tokens) if reply.finish is Finish.STOP else None
    reasons = {
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "stop": "stop_sequence" if stop else "end_turn",
    }
    return {"stop_reason": reasons[reply.finish_reason()], "stop_sequence": stop}


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}


def _arguments(call: Mapping[str, Any]) -> str:
    arguments: str = call["function"]["arguments"]
    return arguments


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)
