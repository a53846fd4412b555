"""Lines of a selection: the columns that SFT and DPO read, and where each response is from.

Columns of provenance begin with `from_`; in a pair those of one side have its name behind that
(`from_chosen_step`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.data.row_use import is_json
from asyncrl.data.rows import Row
from asyncrl.journal.responses import ResponseTokens
from asyncrl.model.tokenizer import TextCodec
from asyncrl.readers.selection.candidate import Candidate
from asyncrl.records import Observed, VerifierSpec
from asyncrl.rollout.told_task import conversation_of

TYPES = {
    "response": "string",
    "chosen": "string",
    "rejected": "string",
    "chosen_score": "double",
    "rejected_score": "double",
    "messages_sampled": "bool[]",
    "chosen_messages_sampled": "bool[]",
    "rejected_messages_sampled": "bool[]",
    "prompt_tokens": "int32[]",
    **{f"{side}_tokens": "int32[]" for side in ("response", "chosen", "rejected")},
    **{f"{side}_sampled": "bool[]" for side in ("response", "chosen", "rejected")},
    **{f"from_{name}": "string" for name in ("run", "row", "choice", "template", "tokenizer")},
    **{
        f"from_{side}{name}": kind
        for side in ("", "chosen_", "rejected_")
        for name, kind in {
            "response": "string",
            "step": "int64",
            "version_min": "int64",
            "version_max": "int64",
            "finish": "string",
            "num_tokens": "int64",
            "verdict": "string",
            "score": "double",
            "verifier": "string",
        }.items()
    },
}
"""Arrow types of the columns that have the same in every selection; others are as the rows have them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Columns that all lines have alike."""

    run: str
    """The run's folder, or the recipe or model that was asked."""
    choice: str
    template: str | None
    """Digests (`tasks/digests.py`); None where the model's folder is not on this machine."""
    tokenizer: str | None


def _as_it_is(row: Row) -> Row:
    return row


@dataclass(frozen=True, slots=True)
class LineMaker:
    origin: Origin
    codec: TextCodec | None
    """None where the model's folder is not on this machine."""
    has_turns: bool
    has_tokens: bool
    opened: Callable[[Row], Row] = _as_it_is
    """The row with the messages by which its environment opened the conversation."""

    def line(
        self, row: Row, found: Sequence[Candidate], tokens: Mapping[str, ResponseTokens]
    ) -> dict[str, Any]:
        """One response, or the chosen and the rejected one. `tokens` by response id, where they are asked
        for."""
        of_line = self._response if len(found) == 1 else self._pair
        shared = {
            "from_run": self.origin.run,
            "from_row": row.row_id,
            "from_choice": self.origin.choice,
            "from_template": self.origin.template,
            "from_tokenizer": self.origin.tokenizer,
        }
        gold = row.answer if is_json(row.answer) else str(row.answer)
        own = of_line(row, found, tokens)
        return {"prompt": row.prompt, **own, "answer": gold, "verifier": _named(row.verifier), **shared} | {
            name: value
            for prefix, each in zip(("from_",) if len(found) == 1 else PAIR, found, strict=True)
            for name, value in _provenance(prefix, each).items()
        }

    def _response(
        self, row: Row, found: Sequence[Candidate], tokens: Mapping[str, ResponseTokens]
    ) -> dict[str, Any]:
        (each,) = found
        line: dict[str, Any] = {"response": each.text}
        if self.has_turns:
            line["messages"], line["messages_sampled"] = self.conversation(row, tokens[each.response_id])
        if self.has_tokens:
            line["prompt_tokens"] = _prompt_tokens(each, tokens)
            line |= _response_tokens("response", each, tokens)
        return line

    def _pair(
        self, row: Row, found: Sequence[Candidate], tokens: Mapping[str, ResponseTokens]
    ) -> dict[str, Any]:
        line: dict[str, Any] = {}
        for side, each in zip(SIDES, found, strict=True):
            line[side] = each.text
            line[f"{side}_score"] = each.correctness()
            if self.has_turns:
                said = self.conversation(row, tokens[each.response_id])
                line[f"{side}_messages"], line[f"{side}_messages_sampled"] = said
        if self.has_tokens:
            line["prompt_tokens"] = _prompt_tokens(found[0], tokens)
            for side, each in zip(SIDES, found, strict=True):
                line |= _response_tokens(side, each, tokens)
        return line

    def conversation(self, row: Row, tokens: ResponseTokens) -> tuple[list[dict[str, Any]], list[bool]]:
        """All messages, and of each whether the policy wrote it."""
        assert self.codec is not None
        turns: list[list[int]] = [[]]
        observed: list[Observed] = []
        for part in tokens.parts:
            if isinstance(part, Observed):
                observed.append(_readable(part))
                turns.append([])
            else:
                turns[-1] += part.tokens
        told = conversation_of(turns, observed, self.codec)
        row = self.opened(row)
        opening = [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else row.prompt
        messages, are_sampled = list(opening), [False] * len(opening)
        for place, turn in enumerate(told.turns):
            answers = told.observations[place] if place < len(told.observations) else ()
            messages += [{"role": "assistant", "content": turn}, *map(dict, answers)]
            are_sampled += [True, *(False for _ in answers)]
        return messages, are_sampled


SIDES = ("chosen", "rejected")
PAIR = ("from_chosen_", "from_rejected_")


def _readable(part: Observed) -> Observed:
    """Without notes that were too long to be stored whole: the tokens tell what the model read."""
    try:
        json.loads(part.notes or "{}")
    except ValueError:
        return Observed(part.tokens)
    return part


def _named(spec: VerifierSpec) -> str | dict[str, Any]:
    """As a data row names its verifier."""
    return {"name": spec.name, "options": dict(spec.options)} if spec.options else spec.name


def _provenance(prefix: str, each: Candidate) -> dict[str, Any]:
    found = {
        "response": each.response_id,
        "step": each.step,
        "version_min": each.version_min,
        "version_max": each.version_max,
        "finish": each.finish,
        "num_tokens": each.num_tokens,
        "verdict": each.score.outcome,
        "score": each.score.correctness,
        "verifier": each.verifier.name,
    }
    return {f"{prefix}{name}": value for name, value in found.items()}


def _prompt_tokens(each: Candidate, tokens: Mapping[str, ResponseTokens]) -> list[int]:
    return list(tokens[each.response_id].prompt if each.generated is None else each.generated.prompt)


def _response_tokens(side: str, each: Candidate, tokens: Mapping[str, ResponseTokens]) -> dict[str, Any]:
    """All tokens after the prompt, and of each whether the policy sampled it: what answered a turn is not."""
    if each.generated is not None:
        sampled = list(each.generated.response)
        return {f"{side}_tokens": sampled, f"{side}_sampled": [True] * len(sampled)}
    parts = tokens[each.response_id].parts
    return {
        f"{side}_tokens": [token for part in parts for token in part.tokens],
        f"{side}_sampled": [not isinstance(part, Observed) for part in parts for _ in part.tokens],
    }
