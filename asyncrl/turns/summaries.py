"""Summaries of a conversation by its own model (turns.summarize).

Once a context is long, the answer to a turn ends with a request, and the next turn is a summary: sampled and
trained as any other. A branch begins behind it, with the prompt, the text of the summary and the last turns.
All of these are context there; what was sampled is trained where it was sampled. The notes on answers say all
of this, so a restart finds its place. This is not `journal.compaction`, which forgets tokens of old steps.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from asyncrl.errors import InputError
from asyncrl.recipe.sections.turns import Summarize
from asyncrl.records import Observed, Trajectory
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import Message
from asyncrl.turns.history import Exchange

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
        context = self._opened(opening, self._text(summary))
        parts = [
            [*each.turn, *self.dialogue.answer(each.turn, each.messages)]
            for each in answered[max(0, len(answered) - self.settings.keep_turns) :]
        ]
        room = self.settings.at_tokens // 2 - len(context)
        sizes = accumulate(len(part) for part in reversed(parts))
        num_kept = sum(1 for _ in takewhile(lambda size: size <= room, sizes))
        kept = parts[len(parts) - num_kept :]
        return [*context, *(token for part in kept for token in part)], num_kept

    def _text(self, summary: Sequence[int]) -> str:
        """A summary without the thinking in front of it."""
        return self.dialogue.codec.decode(summary).rpartition("</think>")[2].strip()

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
