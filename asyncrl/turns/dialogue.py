"""Tokens between two turns: the answer of an environment or of tools, as the chat template writes it.

Tokens in, tokens out: what the model sampled stays as it is, and only what follows it is rendered. For that
the template writes a short conversation with a stand-in for the turn, and what it puts behind the stand-in
is used. The contents of messages are tokenised apart from the template, by a tokenizer without added tokens:
text that looks like a special token, or like <tool_call>, does not become one.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from asyncrl.errors import InputError
from asyncrl.model.learned_turns import turn_ends
from asyncrl.model.templates import ChatTemplate
from asyncrl.model.tokenizer import TextCodec
from asyncrl.turns.environment import Message

_QUESTION, _TURN = "QUESTION-OF-A-STAND-IN", "TURN-OF-A-STAND-IN"
_MARK = "CONTENT-{}-OF-A-STAND-IN"
CUT = "\n[... {} tokens were left out here ...]\n"


@dataclass(frozen=True, slots=True)
class _Template:
    """Text of the template and contents of messages, in order."""

    text: str
    """In front of the content."""
    message: int | None = None
    """Index of the message whose content follows; None at the end."""
    is_json: bool = False
    """Whether the content stands in a JSON string."""


class Dialogue:
    """Joins turns of one model's conversations. Raises InputError where its template cannot."""

    def __init__(self, codec: TextCodec, *, max_observed_tokens: int) -> None:
        self._codec = codec
        self._max_tokens = max_observed_tokens
        self._plain = codec.without_added_tokens()

    def by(self, codec: TextCodec) -> "Dialogue":
        """The same with another codec of the model."""
        return Dialogue(codec, max_observed_tokens=self._max_tokens)

    @property
    def codec(self) -> TextCodec:
        return self._codec

    def answer(self, turn: Sequence[int], messages: Sequence[Message], *, request: str = "") -> list[int]:
        """Tokens that follow a `turn`: its end where it was cut off, `messages`, a `request` of the user,
        which is never cut, and the header of the next turn."""
        # Some templates refuse two messages of the user in a row.
        is_joined = bool(request and messages and messages[-1].get("role") == "user")
        asked: list[Message] = [{"role": "user", "content": request}] if request and not is_joined else []
        parts = self._parts([*messages, *asked])
        tokens: list[int] = []
        contents = self.contents(messages, {part.message for part in parts if part.is_json})
        if is_joined:
            contents[-1] += self.plain(f"\n\n{request}")
        elif request:
            contents.append(self.plain(request))
        for index, part in enumerate(parts):
            text = part.text
            if index == 0 and turn and turn[-1] in self._codec.stop_token_ids:
                text = self._without_end(text, turn[-1])
            tokens += self._codec.encode_inside(text)
            if part.message is not None:
                tokens += contents[part.message]
        return tokens

    def inline(self, before: str, content: str, after: str) -> list[int]:
        """Tokens of `content` between two texts of the format, within the model's message."""
        inside = self._cut(self._plain.encode(content), self._max_tokens)
        return [*self._codec.encode_inside(before), *inside, *self._codec.encode_inside(after)]

    def contents(self, messages: Sequence[Message], quoted: Collection[int | None]) -> list[list[int]]:
        """Tokens of the contents of one answer's messages, none of them an added token; those of the indices
        `quoted` stand in JSON strings."""
        share = self._max_tokens // max(len(messages), 1)
        texts = [_text(message) for message in messages]
        written = [
            json.dumps(text, ensure_ascii=False)[1:-1] if i in quoted else text
            for i, text in enumerate(texts)
        ]
        return [self._cut(self._plain.encode(text), share) for text in written]

    def plain(self, text: str) -> list[int]:
        """Tokens of a text, none of them an added token, whatever it says."""
        return self._plain.encode(text)

    def _cut(self, tokens: Sequence[int], limit: int) -> list[int]:
        """The head and the tail of what is too long, with a remark between them."""
        if len(tokens) <= limit:
            return list(tokens)
        remark = self._plain.encode(CUT.format(len(tokens) - limit))
        room = max(0, limit - len(remark))
        head = (room + 1) // 2
        return [*tokens[:head], *remark[:limit], *tokens[len(tokens) - (room - head) :]][:limit]

    def _without_end(self, text: str, last: int) -> str:
        """The template's text behind a turn that already ended itself by `last`, whichever end token that is.

        Where the header of what follows ends a turn (GLM), another end token is not in its place.
        """
        found = turn_ends(self._codec)
        ends = [*self._codec.end_texts(), found.in_history]
        if not found.is_last_written:
            ends = [self._codec.exact_text([last])]
        # Some templates pad what an assistant wrote.
        stripped = text.lstrip(" ")
        for end in ends:
            if end is not None and stripped.startswith(end):
                return stripped[len(end) :]
        return text

    def _parts(self, messages: Sequence[Message]) -> list[_Template]:
        template = self._codec.template
        if template is None:
            raise InputError(
                "turns need a chat template to write answers, but the model folder has none. Add one, or "
                "set turns.call_format: tags, whose answers stand in the model's own message."
            )
        marks = [_MARK.format(index) for index in range(len(messages))]
        tail = _behind_turn(
            template, [{**m, "content": mark} for m, mark in zip(messages, marks, strict=True)]
        )
        probe = _behind_turn(
            template, [{**m, "content": f'{k}"'} for m, k in zip(messages, marks, strict=True)]
        )
        parts = []
        for index, mark in enumerate(marks):
            before, found, tail = tail.partition(mark)
            if not found:
                raise left_out(messages[index])
            parts.append(_Template(before, index, is_json=f'{mark}\\"' in probe))
        return [*parts, _Template(tail)]


def left_out(message: Message) -> InputError:
    return InputError(
        f"the chat template leaves out the content of a message of the role {message.get('role')!r} that "
        f"follows a turn: the model would never read it. Use a template that writes it, or set "
        f"turns.call_format: tags."
    )


def _behind_turn(template: ChatTemplate, messages: Sequence[Message]) -> str:
    """The template's text between a turn and the next one."""
    opening: list[Message] = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _TURN}]
    text = template.render_all([*opening, *messages])
    _, found, behind = text.rpartition(_TURN)
    if not found:
        raise InputError(
            "the chat template leaves out an assistant's turn that others follow: what the model wrote could "
            "not be continued. Use another template (chat_template.jinja in the model folder)."
        )
    return behind


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
