"""Contexts of turns that are not what is recorded: as the chat template renders them (prompt.history), or
behind a summary of the conversation by its own model (turns.summarize).

A template may write an earlier turn otherwise than it was sampled, such as without its thinking. The next
turn then has a context of its own. Where the template only writes on behind what is recorded, what was
sampled stays as it is. What the template writes is tokenised, the model's earlier turns included; contents of
answers are tokenised apart, as in `dialogue`. A text in a turn that looks like an added token, and was not
sampled as one, does not become one.

Once a context is long, the answer to a turn ends with a request, and the next turn is a summary: sampled and
trained as any other. A branch begins behind it, with the prompt, the text of the summary and the last turns.
All of these are context there; what was sampled is trained where it was sampled. The notes on answers say all
of this, so a restart finds its place. This is not `journal.compaction`, which forgets tokens of old steps."""

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from asyncrl.errors import InputError
from asyncrl.model.templates import ChatTemplate
from asyncrl.recipe.sections.turns import Summarize
from asyncrl.records import Observed, Trajectory
from asyncrl.turns.dialogue import Dialogue, left_out
from asyncrl.turns.environment import Message


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn and the messages that answered it."""

    turn: Sequence[int]
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Continued:
    """The next turn's context is what is recorded and `tokens` behind it."""

    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The next turn's context, which does not begin with what is recorded."""

    context: list[int]


class RenderedHistory:
    """Renders the conversations of one model, which has a chat template."""

    def __init__(self, dialogue: Dialogue) -> None:
        codec = dialogue.codec
        assert codec.template is not None, "a history is rendered by a chat template"
        self._dialogue = dialogue
        self.codec = codec
        self.template: ChatTemplate = codec.template
        self._added = codec.added_texts()
        words = sorted(self._added.values(), key=len, reverse=True)
        self._added_words = re.compile("|".join(map(re.escape, words)) or "(?!)")
        # No model can write it.
        self._nonce = secrets.token_hex(8)
        self._marks = re.compile(f"MARK-{self._nonce}-(WORD|CONTENT)-([0-9]+)-([0-9]+)-")

    def answer(
        self, opening: Sequence[Message], answered: Sequence[Exchange], newest: Exchange
    ) -> Continued | Rewritten:
        """The context after the `newest` turn was answered, in a conversation that began with `opening`.

        Raises InputError where the template cannot write it.
        """
        conversation = _Conversation(self, opening, [*answered, newest])
        text = conversation.text()
        probe = conversation.text(quote='"')
        quoted = {found for found in self._placed(text) if f'{self.mark("CONTENT", *found)}\\"' in probe}
        number = len(answered)
        placed = set(self._placed(text))
        for index, message in enumerate(newest.messages):
            if (number, index) not in placed:
                raise left_out(message)
        spoken, end = self.codec.split_end(newest.turn)
        recorded = (
            conversation.text(before=number) + conversation.said(number, spoken) + self.codec.exact_text(end)
        )
        if text.startswith(recorded):
            return Continued(list(self._tokens(text[len(recorded) :], conversation, quoted, is_inside=True)))
        return Rewritten(list(self._tokens(text, conversation, quoted, is_inside=False)))

    def _placed(self, text: str) -> list[tuple[int, int]]:
        """(exchange, message) of each content in a rendered text."""
        return [
            (int(found[2]), int(found[3])) for found in self._marks.finditer(text) if found[1] == "CONTENT"
        ]

    def mark(self, kind: str, number: int, index: int) -> str:
        return f"MARK-{self._nonce}-{kind}-{number}-{index}-"

    def _tokens(
        self, text: str, conversation: "_Conversation", quoted: set[tuple[int, int]], *, is_inside: bool
    ) -> Iterator[int]:
        start = 0
        for found in self._marks.finditer(text):
            yield from self._written(text[start : found.start()], is_inside=is_inside or start > 0)
            start, number, index = found.end(), int(found[2]), int(found[3])
            if found[1] == "WORD":
                yield from self._dialogue.plain(conversation.forged[number][index])
            else:
                messages = conversation.exchanges[number].messages
                own = {i for n, i in quoted if n == number}
                yield from self._dialogue.contents(messages, own)[index]
        yield from self._written(text[start:], is_inside=is_inside or start > 0)

    def _written(self, text: str, *, is_inside: bool) -> Sequence[int]:
        """Tokens of what the template wrote."""
        return (
            self.codec.encode_inside(text) if is_inside else self.codec.encode(text, add_special_tokens=False)
        )

    def unforged(self, number: int, tokens: Sequence[int], forged: list[str]) -> str:
        """The text of a turn, with a mark for each word that looks like an added token and was not sampled
        as one; those words join `forged`."""
        text = self.codec.exact_text(tokens)
        sampled = [self._added[token] for token in tokens if token in self._added]
        if self._added_words.findall(text) == sampled:
            return text

        def marked(found: re.Match[str]) -> str:
            forged.append(found[0])
            return self.mark("WORD", number, len(forged) - 1)

        return "".join(
            self.codec.exact_text(run)
            if run[0] in self._added
            else self._added_words.sub(marked, self.codec.exact_text(run))
            for run in _runs(tokens, self._added)
        )


class _Conversation:
    """The messages of one conversation, with marks in the place of what is tokenised apart."""

    def __init__(
        self, history: RenderedHistory, opening: Sequence[Message], exchanges: Sequence[Exchange]
    ) -> None:
        self.exchanges = exchanges
        self.forged: list[list[str]] = [[] for _ in exchanges]
        """By turn, words that are no tokens of their own."""
        self._history = history
        self._opening = [dict(message) for message in opening]
        self._said: dict[int, str] = {}

    def said(self, number: int, tokens: Sequence[int]) -> str:
        """The text of a turn without the token that ended it."""
        if number not in self._said:
            self._said[number] = self._history.unforged(number, tokens, self.forged[number])
        return self._said[number]

    def text(self, *, before: int | None = None, quote: str = "") -> str:
        """The context of the turn `before`, by default of the next one; `quote` stands behind contents."""
        if before == 0:
            return self._history.template.render(self._opening)
        messages = list(self._opening)
        for number, exchange in enumerate(self.exchanges[:before]):
            spoken, _ = self._history.codec.split_end(exchange.turn)
            text = self.said(number, spoken)
            if messages[-1].get("role") == "assistant" and number == 0:
                # The prompt left the first turn open.
                messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}{text}"}
            else:
                messages.append({"role": "assistant", "content": text})
            messages += [
                {**message, "content": self._history.mark("CONTENT", number, index) + quote}
                for index, message in enumerate(exchange.messages)
            ]
        return self._history.template.render_all(messages)


def _runs(tokens: Sequence[int], added: dict[int, str]) -> Iterator[list[int]]:
    """Each added token by itself, and what stands between them."""
    run: list[int] = []
    for token in tokens:
        if token in added:
            if run:
                yield run
            yield [token]
            run = []
        else:
            run.append(token)
    if run:
        yield run


REQUEST = "summary_request"
"""Note on an answer: what it asks the model for at its end. The next turn is a summary."""
KEPT_TURNS = "kept_turns"
"""Note on a summary: how many turns the context behind it repeats."""
INTRODUCTION = "Your summary of the conversation so far:"


def is_summary(notes: str) -> bool:
    """Whether the turn that they answer is a summary."""
    return KEPT_TURNS in json.loads(notes or "{}")


def summary_turns(trajectory: Trajectory) -> list[bool]:
    """Whether each turn of `Trajectory.turn_lengths` is a summary."""
    found = list[bool]()
    for line in trajectory.lines():
        is_asked, is_begun = False, False
        for segment in line.segments:
            if isinstance(segment, Observed):
                is_asked, is_begun = REQUEST in json.loads(segment.notes or "{}"), False
            elif segment.tokens and not is_begun:
                is_begun = True
                found.append(is_asked)
    return found


@dataclass(frozen=True, slots=True)
class Summaries:
    """Those of one model, which has a chat template."""

    dialogue: Dialogue
    settings: Summarize

    def are_due(self, num_tokens: int) -> bool:
        """Whether a context of that many tokens is to be summed up."""
        return num_tokens >= self.settings.at_tokens

    def context(
        self, opening: Sequence[Message], summary: Sequence[int], answered: Sequence[Exchange]
    ) -> tuple[list[int], int]:
        """The context behind a `summary`, and how many of the turns `answered` it repeats as they were
        sampled. Raises InputError where the chat template cannot write it."""
        # Without the thinking in front of it.
        said = self.dialogue.codec.decode(summary).rpartition("</think>")[2].strip()
        context = self._opened(opening, said)
        parts = [
            [*each.turn, *self.dialogue.answer(each.turn, each.messages)]
            for each in answered[max(0, len(answered) - self.settings.keep_turns) :]
        ]
        room = self.settings.at_tokens // 2 - len(context)
        sizes = accumulate(len(part) for part in reversed(parts))
        num_kept = sum(1 for _ in takewhile(lambda size: size <= room, sizes))
        kept = parts[len(parts) - num_kept :]
        return [*context, *(token for part in kept for token in part)], num_kept

    def _opened(self, opening: Sequence[Message], summary: str) -> list[int]:
        """Tokens of the prompt with a summary at the end of the user's last message. No text in the summary
        becomes an added token."""
        # No model can write it.
        mark = f"SUMMARY-{secrets.token_hex(8)}"
        messages = [dict(message) for message in opening]
        asked = [message for message in messages if message.get("role") == "user"]
        if asked and isinstance(asked[-1].get("content"), str):
            asked[-1]["content"] += mark
        else:
            messages.append({"role": "user", "content": mark})
        codec = self.dialogue.codec
        text, adds_special_tokens = codec.prompt_text(messages)
        before, found, behind = text.partition(mark)
        if not found:
            raise InputError(
                "the chat template leaves out the user's last message, which holds the summary. Use another "
                "template (chat_template.jinja in the model folder), or remove turns.summarize."
            )
        return [
            *codec.encode(before, add_special_tokens=adds_special_tokens),
            *self.dialogue.plain(f"\n\n{INTRODUCTION}\n{summary}"),
            *codec.encode_inside(behind),
        ]
