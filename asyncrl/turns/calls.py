"""Calls of tools in what a model wrote, in the formats of several models, and their results."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.turns.tools import Tool


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, as the model wrote it."""

    name: str
    """Empty where it could not be read."""
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why it cannot be made, in words for the model; empty for a call that can."""
    is_unfinished: bool = False
    """Whether the turn ended before the call did: an error of the model's, or of a limit that cut it off."""


@dataclass(frozen=True, slots=True)
class CallResult:
    name: str
    output: str
    """Text that the model reads."""
    is_error: bool = False
    seconds: float = 0.0
    has_lost: bool = False
    """Whether all tools had lost their state after it, since their process was ended."""


class CallFormat(Protocol):
    """A way to write calls. Built by `asyncrl.turns.formats.call_format`."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a turn, besides those of the recipe."""
        ...

    @property
    def is_inline(self) -> bool:
        """Whether results stand in the model's own message, so that no chat template is needed."""
        ...

    @property
    def offers_tools(self) -> bool:
        """Whether the chat template tells the model of the tools, in the form of these calls."""
        ...

    def parse(self, turn: Sequence[int]) -> list[Call]:
        """The calls of a turn, in order; none where the model called nothing. A call that was begun and
        cannot be read is a Call with an error. What the model forges (results, other roles) is text like any
        other."""
        ...

    def around(self, result: CallResult) -> tuple[str, str]:
        """Texts in front of an inline result and behind it."""
        ...


# A marker that is a token of its own is found by its id: the same letters in other tokens, such as inside a
# string, are text. What the model forges (results, other roles) is text to all of them.
HERMES_HOW = 'Write <tool_call>{"name": ..., "arguments": {...}}</tool_call>.'
LLAMA_HOW = 'Write {"name": ..., "parameters": {...}} and nothing else.'


def call_format(name: str, codec: TextCodec, tools: Sequence[Tool]) -> CallFormat:
    """Raises InputError where the model folder or the tools do not go with it."""
    if name == "auto":
        source = "" if codec.template is None else codec.template.source
        name = "llama" if "ipython" in source or "python_tag" in source else "hermes"
    if name != "tags" and codec.template is None:
        raise InputError(
            f"turns.call_format {name} needs a chat template, but the model folder has none. Add one, or set "
            f"turns.call_format: tags."
        )
    if name == "tags":
        return Tags(codec, tools)
    if name == "fenced":
        if not any(tool.name == "python" for tool in tools):
            raise InputError(
                f"turns.call_format fenced runs ```python blocks, but turns.tools is "
                f"{[tool.name for tool in tools]}. Add the tool python."
            )
        return Fenced(codec)
    return Hermes(codec) if name == "hermes" else Llama(codec)


@dataclass(frozen=True, slots=True)
class _Chat:
    """Results are messages of the role tool."""

    codec: TextCodec
    stop: tuple[str, ...] = ()
    is_inline: bool = False
    offers_tools: bool = True

    def around(self, result: CallResult) -> tuple[str, str]:
        raise AssertionError("results are messages")


class Hermes(_Chat):
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them (Qwen2.5, Qwen3)."""

    def parse(self, turn: Sequence[int]) -> list[Call]:
        calls = []
        for body, is_closed in _between(self.codec, turn, "<tool_call>", "</tool_call>"):
            if not is_closed:
                calls.append(
                    Call("", error=f"the call has no </tool_call>. {HERMES_HOW}", is_unfinished=True)
                )
            else:
                calls.append(_read_call(body, "arguments", HERMES_HOW))
        return calls


class Llama(_Chat):
    """{"name": ..., "parameters": {...}} as the whole turn, after <|python_tag|> or not (Llama 3)."""

    def parse(self, turn: Sequence[int]) -> list[Call]:
        text = self.codec.decode(turn).strip().removeprefix("<|python_tag|>").strip()
        # The end token of a call.
        text = text.removesuffix("<|eom_id|>").strip()
        if not re.match(r'\{\s*"(name|type|function)"', text):
            return []
        return [_read_call(text, "parameters", LLAMA_HOW, is_unfinished=not text.endswith("}"))]


class Fenced(_Chat):
    """The last ```python block of the turn is the code of one call."""

    def __init__(self, codec: TextCodec) -> None:
        super().__init__(codec, offers_tools=False)

    def parse(self, turn: Sequence[int]) -> list[Call]:
        text = self.codec.decode(turn)
        blocks = re.findall(r"^```(?:python|py)[ \t]*\n(.*?)^```[ \t]*$", text, re.DOTALL | re.MULTILINE)
        return [Call("python", {"code": blocks[-1]})] if blocks else []


class Tags:
    """<tag>text</tag> at the end of a turn, which it ends; the result follows in the same message."""

    is_inline = True
    offers_tools = False

    def __init__(self, codec: TextCodec, tools: Sequence[Tool]) -> None:
        """Raises InputError for a tool that takes other than one text."""
        self._codec = codec
        self._tools = {tool.tag: tool for tool in tools}
        self._result_tags = {tool.name: tool.result_tag for tool in tools}
        for tool in tools:
            properties = tool.schema["function"]["parameters"]["properties"]
            if [kind.get("type") for kind in properties.values()] != ["string"]:
                raise InputError(
                    f"turns.call_format tags puts one text between <{tool.tag}> and </{tool.tag}>, but the "
                    f"tool {tool.name} takes {', '.join(tool.arguments()) or 'nothing'}. Use hermes or "
                    f"llama, or a tool of one text."
                )
        self.stop = tuple(f"</{tag}>" for tag in self._tools)

    def parse(self, turn: Sequence[int]) -> list[Call]:
        text = self._codec.exact_text(turn)
        ends = {tag: text.rfind(f"</{tag}>") for tag in self._tools}
        tag = max(ends, key=lambda name: ends[name])
        # The token that completes the tag may hold more behind it.
        if ends[tag] < 0 or text[ends[tag] + len(tag) + 3 :].strip():
            return []
        tool = self._tools[tag]
        _, found, body = text[: ends[tag]].rpartition(f"<{tag}>")
        if not found:
            return [Call(tool.name, error=f"there is no <{tag}> in front of </{tag}>")]
        return [Call(tool.name, {tool.arguments()[0]: body})]

    def around(self, result: CallResult) -> tuple[str, str]:
        tag = self._result_tags.get(result.name, "output")
        return f"<{tag}>", f"</{tag}>"


def _between(codec: TextCodec, turn: Sequence[int], opening: str, closing: str) -> list[tuple[str, bool]]:
    """The text between each pair of markers, and whether the second one is there."""
    first, last = codec.added_token(opening), codec.added_token(closing)
    if first is None or last is None:
        parts = codec.decode(turn).split(opening)[1:]
        return [(part.partition(closing)[0], closing in part) for part in parts]
    found: list[tuple[str, bool]] = []
    start: int | None = None
    for place, token in enumerate(turn):
        if token == first:
            if start is not None:
                found.append((codec.exact_text(turn[start:place]), False))
            start = place + 1
        elif token == last and start is not None:
            found.append((codec.exact_text(turn[start:place]), True))
            start = None
    if start is not None:
        found.append((codec.exact_text(turn[start:]), False))
    return found


def _read_call(text: str, key: str, how: str, *, is_unfinished: bool = False) -> Call:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Call("", error=f"the call is not JSON: {error}. {how}", is_unfinished=is_unfinished)
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return Call("", error=f'the call has no "name" that is text. {how}')
    arguments = found.get(key, found.get("arguments", found.get("parameters", {})))
    if isinstance(arguments, str):
        # Some models write the arguments as a text of JSON.
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return Call(found["name"], error=f'"{key}" of the call is not an object. {how}')
    return Call(found["name"], arguments)
