"""Which text of a conversation is the assistant's: what supervised training learns of it.

A turn begins where the chat template lets the model begin, behind the header that asks for it, and ends with
the token that ends turns, which may be the first of the next header. So what is learned is exactly what the
model is asked to write at inference. The text is the template's for the whole conversation; one that writes a
turn otherwise there than where the model was asked for it is refused: the loss would be on text that nothing
asks for.
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


class TurnEnds(NamedTuple):
    """The tokens that a chat template ends the assistant's turns by."""

    inside: str | None
    """The one of a turn that others follow; None: it ends with its text."""
    last: str | None
    """The one of the last turn of a conversation; None where the template has none."""
    headers: tuple[str, ...] = ()
    """Where the template writes none: those that begin the next turn, and end a response (GLM)."""
    in_history: str | None = None
    """Another token that the template writes in place of `last` where messages follow, and that ends no
    response (harmony: <|end|> for <|return|>)."""

    @property
    def is_last_written(self) -> bool:
        return self.last is not None and not self.headers


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
    ends = turn_ends(codec)
    text = codec.template.render_closed(list(messages[: learned[-1] + 1]))
    found: list[Stretch] = []
    last = 0
    for index in learned:
        begin = _begin(codec.template, messages, index, text, last)
        stop = _stop(messages[index], index, text, begin, ends, is_last=index == learned[-1])
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


def _stop(message: Message, index: int, text: str, begin: int, ends: TurnEnds, *, is_last: bool) -> int:
    content = message.get("content")
    content = content.strip() if isinstance(content, str) else ""
    if not content and not message.get("tool_calls"):
        raise InputError(f"message {index + 1}, the assistant's, is empty: there is nothing to learn")
    if ends.in_history is not None and not is_last:
        raise InputError(
            f"the chat template ends message {index + 1}, which others follow, with {ends.in_history}, but "
            f"the model is asked to end it with {ends.last}. Set sft.loss_on to response, or make a row of "
            f"each turn"
        )
    end = ends.last if is_last else ends.inside
    if ends.is_last_written and end is not None:
        place = text.find(end, begin)
        if place >= 0 and content in text[begin : place + len(end)]:
            return place + len(end)
    elif (place := text.find(content, begin)) >= 0:
        stop = place + len(content)
        headers = () if ends.is_last_written else ends.headers
        return stop + max((len(each) for each in headers if text.startswith(each, stop)), default=0)
    raise InputError(
        f"the chat template does not write message {index + 1}, the assistant's, as it is: its text "
        f"{content[:80]!r} is not whole before the turn ends. Set sft.loss_on to response where it leaves "
        f"out the thinking of earlier turns, or change the message"
    )


@cache
def turn_ends(codec: TextCodec) -> TurnEnds:
    """How the codec's chat template ends turns of the assistant."""
    if codec.template is None:
        return TurnEnds(None, None)
    asked = [{"role": "user", "content": "Three plus four?"}, {"role": "assistant", "content": _WORD}]
    last = _first_added(codec, codec.template.render_closed(asked))
    following = {"role": "user", "content": "Why?"}
    first = _first_added(codec, codec.template.render_closed([*asked, following]))
    if last is None and first in codec.end_texts():
        return TurnEnds(first, first, tuple(codec.end_texts()))
    is_end = first == last or first in codec.end_texts()
    return TurnEnds(first if is_end else None, last, in_history=_end_in_history(codec, codec.template, last))


def _end_in_history(codec: TextCodec, template: ChatTemplate, last: str | None) -> str | None:
    if last not in codec.end_texts():
        return None
    added, asked = codec.added_texts().values(), [{"role": "user", "content": "Three plus four?"}]
    header = template.render_all(asked).removeprefix(template.render_closed(asked))
    history = [*asked, {"role": "assistant", "content": _WORD}, *asked]
    behind = template.render_all(history).rpartition(_WORD)[2]
    for text in set(added) - set(codec.end_texts()):
        # What opens each message is no end.
        next_message = behind.removeprefix(text)
        is_followed = any(header.startswith(one) and next_message.startswith(one) for one in added)
        if behind.startswith(text) and is_followed:
            return text
    return None


def _first_added(codec: TextCodec, text: str) -> str | None:
    """The first of the vocabulary's added tokens behind the word that shows how turns end."""
    _, found, behind = text.rpartition(_WORD)
    if not found:
        return None
    places = {text: behind.find(text) for text in codec.added_texts().values() if text in behind}
    return min(places, key=lambda text: (places[text], -len(text)), default=None)
