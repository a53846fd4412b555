"""Requests of OpenAI's chat completions: what is read of them, and what is refused.

What would change the distribution that tokens are sampled from is refused, or overridden by the recipe: the
trainer must know the distribution. Refusals are 400, because OpenAI's clients ask again after 408, 409, 429
and 5xx.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asyncrl.turns.environment import Message

MOST_REPLIES = 128
"""Most replies of one call, as OpenAI has it."""
_CONSTRAINTS = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar", "regex", "ebnf"),
    *("json_schema", "structured_outputs"),
)
"""Parameters that constrain what is sampled, of OpenAI and of servers that are compatible with it."""
_NOT_SERVED = {
    "logit_bias": "logit_bias changes how likely tokens are, so that the trainer would not know their "
    "distribution. Leave it out; stop ends a response at a text.",
    "top_logprobs": "top_logprobs is not served: servers say the log-prob of each sampled token alone.",
    "functions": "functions is not served: it is OpenAI's older name. Give the functions in tools.",
    "function_call": "function_call is not served: it is OpenAI's older name. Give tools and tool_choice.",
    "audio": "audio is not served: the model reads and writes text.",
    "modalities": "modalities other than text are not served: the model reads and writes text.",
}
"""Parameter -> why it is refused, and what to do."""
_OVERRIDDEN = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "seed", "thinking", "reasoning"),
)


class RequestRefused(Exception):
    """A request that the endpoint does not serve; the message says why."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status

    def body(self) -> dict[str, Any]:
        """OpenAI's shape of an error."""
        kind = {401: "authentication_error", 404: "not_found_error"}.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call, as far as it counts."""

    messages: tuple[Message, ...]
    """Canonical: equal ones are equal, however a client writes them."""
    tools: tuple[dict[str, Any], ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    num_replies: int = 1
    has_logprobs: bool = False
    is_streamed: bool = False
    has_usage_in_stream: bool = False
    model: str = ""
    """Said back as it was said."""
    role: str = ""
    """The role that speaks, where the agent has several."""
    overridden: tuple[str, ...] = ()
    """Parameters that the recipe's replace, or that have no effect."""

    def digest(self) -> str:
        """A digest of all that decides the replies: a retry has the same."""
        parts = [self.messages, self.tools, self.stop, self.max_tokens, self.num_replies, self.role]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def with_role(request: ChatRequest, roles: Collection[str], opponents: Collection[str] = ()) -> ChatRequest:
    """The request of the role or opponent that its `model` names. Raises RequestRefused."""
    if request.model in opponents:
        return replace(request, role=request.model)
    if not roles:
        return request
    if request.model not in roles:
        expected = " or ".join([*roles, *opponents])
        keys = "agent.roles, agent.opponents" if opponents else "agent.roles"
        raise RequestRefused(
            f"model is {request.model!r:.80}, expected the role that speaks: {expected} ({keys}).",
            param="model",
        )
    return replace(request, role=request.model)


def read_request(body: Mapping[str, Any]) -> ChatRequest:
    """Raises RequestRefused."""
    _refuse_constraints(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages must be a list of at least one message.", param="messages")
    read = tuple(canonical(message, f"messages[{i}]") for i, message in enumerate(messages))
    if read[-1]["role"] == "assistant":
        raise RequestRefused(
            "The last message is the assistant's, which this endpoint does not continue. End the messages "
            "with one of another role.",
            param="messages",
        )
    tools, choice = items(body, "tools"), body.get("tool_choice")
    if not all(isinstance(tool, dict) for tool in tools):
        raise RequestRefused("tools must be a list of objects.", param="tools")
    options = body.get("stream_options") or {}
    return ChatRequest(
        messages=_named_results(read),
        tools=() if choice == "none" else tuple(tools),
        stop=_stop(body.get("stop")),
        max_tokens=_max_tokens(body),
        num_replies=whole_number(body, "n", most=MOST_REPLIES) or 1,
        has_logprobs=bool(body.get("logprobs")),
        is_streamed=bool(body.get("stream")),
        has_usage_in_stream=isinstance(options, dict) and bool(options.get("include_usage")),
        model=str(body.get("model") or ""),
        overridden=_overridden(body, choice),
    )


def canonical(message: Any, param: str) -> Message:
    """A message without what clients add in different ways: empty fields, text in parts. Raises
    RequestRefused."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestRefused(f"{param} must be an object with a role.", param=param)
    role = "system" if message["role"] == "developer" else message["role"]
    found: Message = {"role": role, "content": _text(message.get("content"), param)}
    for key in ("name", "tool_call_id"):
        if isinstance(message.get(key), str):
            found[key] = message[key]
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        found["tool_calls"] = [_canonical_call(call, f"{param}.tool_calls") for call in calls]
    return found


def rendered(messages: Sequence[Message]) -> list[Message]:
    """Messages as chat templates take them: arguments of calls are objects."""
    return [
        {**message, "tool_calls": [_rendered_call(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else dict(message)
        for message in messages
    ]


def _rendered_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = function["arguments"]
    return {**call, "function": {**function, "arguments": arguments}}


def _named_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Results say the name of their tool, which some templates write and OpenAI's clients leave out."""
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls", [])
        if call["id"]
    }
    return tuple(
        {**message, "name": names[message["tool_call_id"]]}
        if message["role"] == "tool" and "name" not in message and message.get("tool_call_id") in names
        else message
        for message in messages
    )


def _canonical_call(call: Any, param: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestRefused(f"{param} must be objects with a function that has a name.", param=param)
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": written_arguments(function.get("arguments"))},
    }


def written_arguments(arguments: Any) -> str:
    """Arguments of a call as text, the same for equal ones; what is no JSON stays as it is."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return str(arguments)
    return json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)


def _text(content: Any, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, Mapping) else part
                raise RequestRefused(
                    f"{param}.content has a part of the type {kind!r}: this endpoint takes text alone.",
                    param=f"{param}.content",
                )
        return "".join(part["text"] for part in content)
    raise RequestRefused(
        f"{param}.content must be text or a list of parts of text.", param=f"{param}.content"
    )


def _refuse_constraints(body: Mapping[str, Any]) -> None:
    form = body.get("response_format")
    kind = form.get("type") if isinstance(form, Mapping) else form
    found = [name for name in _CONSTRAINTS if body.get(name)]
    if kind not in (None, "text"):
        found.insert(0, "response_format")
    if found:
        raise constrains(found[0])
    for name, why in _NOT_SERVED.items():
        if body.get(name) and body[name] not in (["text"], "none", "auto"):
            raise RequestRefused(why, param=name, code="unsupported_parameter")


def constrains(name: str) -> RequestRefused:
    """The refusal of a parameter that constrains what is sampled."""
    return RequestRefused(
        f"{name} constrains what is sampled, so that the trainer would not know the distribution of the "
        f"tokens. Ask for the format in words.",
        param=name,
        code="unsupported_parameter",
    )


def _overridden(body: Mapping[str, Any], choice: Any) -> tuple[str, ...]:
    found = [name for name in _OVERRIDDEN if body.get(name) is not None]
    if choice not in (None, "auto", "none"):
        found.append("tool_choice")
    return tuple(found)


def _stop(given: Any) -> tuple[str, ...]:
    stop = [given] if isinstance(given, str) else given or []
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise RequestRefused("stop must be a text or a list of texts.", param="stop")
    return tuple(stop)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    """Proxies send both names: the smaller one counts."""
    found = [whole_number(body, name) for name in ("max_tokens", "max_completion_tokens")]
    return min((number for number in found if number is not None), default=None)


def items(body: Mapping[str, Any], name: str) -> list[Any]:
    """A parameter that is a list, or is missing. Raises RequestRefused."""
    value = body.get(name) or []
    if not isinstance(value, list):
        raise RequestRefused(f"{name} must be a list.", param=name)
    return value


def whole_number(body: Mapping[str, Any], name: str, most: int | None = None) -> int | None:
    """A parameter that is one from 1 to `most`. Raises RequestRefused."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most and value > most):
        bound = "" if most is None else f" to {most}"
        raise RequestRefused(f"{name} is {value!r}, expected a whole number from 1{bound}.", param=name)
    return value
