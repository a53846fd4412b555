"""Values that environments and tools return: checked where they are returned, then sent as JSON.

A wrong type is the environment's bug, named in the error. Sizes and depths are the response's doing, since
answers may quote it: too long a text is cut, and an answer that is too large all the same is a limit."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.turns.environment import End, Message, Observation
from verifiers.storable import MAX_EXTRACTED_CHARACTERS, MAX_WORDS_CHARACTERS, storable
from verifiers.verdict import as_number

MAX_TEXT_CHARACTERS = 400_000
"""Limit of one text; its tokens are cut to turns.max_observed_tokens later."""
MAX_REPLY_BYTES = 16 << 20
MAX_DEPTH = 50
_MAX_INTEGER_BITS = 4096
_CUT = "\n[... {} characters were left out here ...]\n"


class WrongReply(Exception):
    """The value is not of the type that the interface says."""


class TooLarge(Exception):
    """The answer is larger or deeper than one may be."""


def pack_reply(reply: object) -> dict[str, Any]:
    """The answer of `step` in plain data. Raises WrongReply and TooLarge."""
    if isinstance(reply, Observation):
        messages = _messages(reply.messages, "an Observation's messages")
        if not messages:
            raise WrongReply("step returned an Observation without a message: the model would read nothing")
        return {"messages": messages, "reward": _number(reply.reward, "reward", -math.inf, math.inf)}
    if isinstance(reply, End):
        return {
            "score": _number(reply.score, "score", 0.0, 1.0),
            "detail": storable(_text(reply.detail, "detail"), limit=MAX_WORDS_CHARACTERS),
            "extracted": None
            if reply.extracted is None
            else storable(_text(reply.extracted, "extracted"), limit=MAX_EXTRACTED_CHARACTERS),
        }
    raise WrongReply(
        f"step returned {_kind(reply)}, expected asyncrl.turns.Observation(messages) or End(score)"
    )


def unpack_reply(packed: Mapping[str, Any]) -> Observation | End:
    if "messages" in packed:
        return Observation(packed["messages"], packed["reward"])
    return End(packed["score"], packed["detail"], packed["extracted"])


def pack_opening(opening: object) -> list[Message] | None:
    """The messages that `start` returned, in plain data. Raises WrongReply and TooLarge."""
    return None if opening is None else _messages(opening, "what start returned")


def pack_output(output: object, tool: str) -> str:
    """A tool's output: a text, or plain data as JSON. Raises WrongReply and TooLarge."""
    if isinstance(output, str):
        return _shortened(output)
    plain = _plain(output, f"what the tool {tool!r} returned", MAX_DEPTH)
    return _shortened(json.dumps(plain, ensure_ascii=False))


def _messages(found: object, what: str) -> list[Message]:
    # Before long texts are shortened: what is over the limit is no answer to judge.
    if _num_characters(found) > MAX_REPLY_BYTES:
        raise TooLarge(f"{what} have more than {MAX_REPLY_BYTES} bytes")
    if isinstance(found, str):
        return [{"role": "user", "content": _shortened(found)}]
    if not isinstance(found, Sequence) or isinstance(found, bytes | bytearray):
        raise WrongReply(f"{what} are {_kind(found)}, expected a text or a list of messages")
    messages = []
    for index, message in enumerate(found):
        if not isinstance(message, Mapping):
            raise WrongReply(
                f"{what}, number {index + 1}, is {_kind(message)}, expected {{'role': ..., 'content': ...}}"
            )
        if not isinstance(message.get("role"), str) or "content" not in message:
            keys = ", ".join(map(repr, message)) or "nothing"
            raise WrongReply(
                f"{what}, number {index + 1}, has {keys}, expected a text 'role' and a 'content'"
            )
        messages.append(_plain(message, f"{what}, number {index + 1}", MAX_DEPTH))
    if len(json.dumps(messages)) > MAX_REPLY_BYTES:
        raise TooLarge(f"{what} have more than {MAX_REPLY_BYTES} bytes")
    return messages


def _num_characters(value: object) -> int:
    """Characters of all texts inside; raises RecursionError for a value without an end."""
    match value:
        case str():
            return len(value)
        case Mapping():
            return sum(map(_num_characters, value.values()))
        case list() | tuple():
            return sum(map(_num_characters, value))
    return 0


def _plain(value: Any, what: str, depth: int) -> Any:
    """The value as JSON has it."""
    if depth == 0:
        raise TooLarge(f"{what} is nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool():
            return value
        case str():
            return _shortened(value)
        case int():
            if value.bit_length() > _MAX_INTEGER_BITS:
                raise TooLarge(f"{what} has a number of more than {_MAX_INTEGER_BITS} bits")
            return int(value)
        case float():
            # JSON has no others.
            return float(value) if math.isfinite(value) else str(float(value))
        case list() | tuple():
            return [_plain(member, what, depth - 1) for member in value]
        case Mapping():
            return {_key(key, what): _plain(inner, what, depth - 1) for key, inner in value.items()}
    raise WrongReply(f"{what}: {_kind(value)} is no plain data (texts, numbers, lists, mappings)")


def _key(key: object, what: str) -> str:
    if not isinstance(key, str):
        raise WrongReply(f"{what} has the key {key!r:.80}, expected a text")
    return _shortened(key)


def _shortened(text: str) -> str:
    """Head and tail of what is too long; valid Unicode without NUL."""
    return storable(without_middle(text, MAX_TEXT_CHARACTERS))


def without_middle(text: str, most: int) -> str:
    """The text, or where it has more than `most` characters its head and tail with a mark between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return text[:half] + _CUT.format(len(text) - 2 * half) + text[-half:]


def _number(value: object, name: str, least: float, most: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return float(value)
    try:
        number = as_number(value, name, least, most)
    except ValueError as error:
        raise WrongReply(str(error)) from None
    if not math.isfinite(number):
        raise WrongReply(f"{name} is {number}, expected a finite number")
    return number


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise WrongReply(f"{name} is {_kind(value)}, expected a text")
    return value


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
