"""Which text of a conversation is the assistant's: what supervised training learns of it.

A turn begins where the chat template lets the model begin, behind the header that asks for it, and ends with
the token that ends turns. So what is learned is exactly what the model is asked to write at inference. The
text is the template's for the whole conversation; one that writes a turn otherwise there than where the model
was asked for it is refused: the loss would be on text that nothing asks for.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from asyncrl.errors import InputError
from asyncrl.model.templates import ChatTemplate
from asyncrl.model.tokenizer import TextCodec

Message = dict[str, Any]
_WORD = "Seven"
"""Content of a turn that shows how turns end."""


class Stretch(NamedTuple):
    """A part of a rendered conversation."""

    text: str
    is_learned: bool


def stretches(codec: TextCodec, messages: Sequence[Message], *, last_alone: bool) -> list[Stretch]:
    """The conversation up to its last learned turn, as context and learned turns in order.

    `last_alone`: only the last message is learned; else every turn of the assistant that answers something.
    A turn that the template ends by no token of its own ends with its text. Raises InputError.
    """
    if codec.template is None:
        raise InputError("the row has chat messages, but the model folder has no chat template")
    learned = _learned(messages, last_alone=last_alone)
    end = turn_end(codec)
    text = codec.template.render_closed(list(messages[: learned[-1] + 1]))
    found: list[Stretch] = []
    last = 0
    for index in learned:
        begin = _begin(codec.template, messages, index, text, last)
        stop = _stop(messages[index], index, text, begin, end)
        found += [Stretch(text[last:begin], False), Stretch(text[begin:stop], True)]
        last = stop
    return found


def _learned(messages: Sequence[Message], *, last_alone: bool) -> list[int]:
    """Places of the messages that are learned."""
    roles = [message.get("role") for message in messages]
    if last_alone and roles[-1] != "assistant":
        raise InputError(
            f"the last message is one of {roles[-1]}, but sft.loss_on response learns it. Put the "
            f"assistant's answer last, or set sft.loss_on to assistant"
        )
    openings = ("system", "developer", "assistant")
    asked = next((i for i, role in enumerate(roles) if role not in openings), len(roles))
    found = [i for i, role in enumerate(roles) if role == "assistant" and i > asked]
    if not found:
        listed = ", ".join(map(str, roles))
        raise InputError(f"no message is the assistant's answer to something: the roles are {listed}")
    return found[-1:] if last_alone else found


def _begin(template: ChatTemplate, messages: Sequence[Message], index: int, text: str, last: int) -> int:
    asked = template.render_all(list(messages[:index]))
    if not text.startswith(asked) or len(asked) < last:
        raise InputError(
            f"the chat template writes what comes before message {index + 1} otherwise in the whole "
            f"conversation than where the model is asked for that message: the loss would be on text that "
            f"nothing asks for. Set sft.loss_on to response, or make a row of each turn"
        )
    return len(asked)


def _stop(message: Message, index: int, text: str, begin: int, end: str | None) -> int:
    content = message.get("content")
    content = content.strip() if isinstance(content, str) else ""
    if not content and not message.get("tool_calls"):
        raise InputError(f"message {index + 1}, the assistant's, is empty: there is nothing to learn")
    if end is not None:
        place = text.find(end, begin)
        stop = place + len(end) if place >= 0 else len(text)
        if place >= 0 and content in text[begin:stop]:
            return stop
    elif (place := text.find(content, begin)) >= 0:
        return place + len(content)
    raise InputError(
        f"the chat template does not write message {index + 1}, the assistant's, as it is: its text "
        f"{content[:80]!r} is not whole before the turn ends. Set sft.loss_on to response where it leaves "
        f"out the thinking of earlier turns, or change the message"
    )


@cache
def turn_end(codec: TextCodec) -> str | None:
    """The text of the token that the chat template ends the assistant's turns by; None without one."""
    if codec.template is None:
        return None
    asked = [{"role": "user", "content": "Three plus four?"}, {"role": "assistant", "content": _WORD}]
    _, found, behind = codec.template.render_closed(asked).rpartition(_WORD)
    if not found:
        return None
    places = {text: behind.find(text) for text in codec.added_texts().values() if text in behind}
    return min(places, key=lambda text: (places[text], -len(text)), default=None)


@cache
def end_in_history(codec: TextCodec) -> str | None:
    """The text of another token that the chat template writes where a turn has ended that others follow, in
    place of the model's end token (harmony: <|end|> for <|return|>); None where there is none."""
    if codec.template is None or turn_end(codec) not in codec.end_texts():
        return None
    added, asked = codec.added_texts().values(), [{"role": "user", "content": "Three plus four?"}]
    header = codec.template.render_all(asked).removeprefix(codec.template.render_closed(asked))
    history = [*asked, {"role": "assistant", "content": _WORD}, *asked]
    behind = codec.template.render_all(history).rpartition(_WORD)[2]
    for text in set(added) - set(codec.end_texts()):
        # What opens each message is no end.
        next_message = behind.removeprefix(text)
        is_followed = any(header.startswith(one) and next_message.startswith(one) for one in added)
        if behind.startswith(text) and is_followed:
            return text
    return None
