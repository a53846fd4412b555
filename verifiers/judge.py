"""A language model as judge, by any server with OpenAI's chat completions.

A judge that is not reached, or whose reply has no verdict at its end, is a FAULT, never a wrong answer. The
response cannot leave its place in the question (`judge_template`). Only the end of the reply counts: what the
judge quotes before it, from a response that forges a verdict too, decides nothing. It waits rather than
computes: `verify_async` runs in the caller's event loop.
"""

import asyncio
import re
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, Unpack

from verifiers import strict_json
from verifiers.golds import json_gold
from verifiers.judge_template import NOTE, TEMPLATES, JudgeTemplate
from verifiers.plugins import Bounds
from verifiers.servers import ChatModel, ChatOptions, answered
from verifiers.storable import storable
from verifiers.task import Task
from verifiers.verdict import Outcome, Verdict, as_number, wrong

Kind = Literal["letter", "number", "json"]
_LABEL = r"(?:\W*(?:final\s+)?(?:verdict|answer|score|grade|rating)\W*(?:is\W*)?)?"
_LETTER = re.compile(rf"(?i:{_LABEL})\W*([A-Z])\W*")
_NUMBER = re.compile(
    rf"(?i:{_LABEL})[\s*_:=`]*([-+]?\d+(?:\.\d+)?)(?:\s*(?:/|out of)\s*(\d+(?:\.\d+)?))?[\s*_.`]*"
)
_MAX_LINE_CHARACTERS = 200
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```\s*\Z", re.DOTALL)


Reader = Callable[[str], tuple[str, float]]
"""Gives the judge's own word in a reply, and the score in [0, 1]. Raises ValueError for a reply without a
verdict."""


def read_letter(scores: Mapping[str, float], reply: str) -> tuple[str, float]:
    """A `Reader` of one of the letters in `scores`."""
    found = _LETTER.fullmatch(last_line(reply))
    if found is None or found[1] not in scores:
        raise ValueError(f"the last line of the judge's reply is none of {', '.join(scores)}")
    return found[1], scores[found[1]]


def read_number(low: float, high: float, reply: str) -> tuple[str, float]:
    """A `Reader` of a number on this scale."""
    found = _NUMBER.fullmatch(last_line(reply))
    if found is None:
        raise ValueError("the last line of the judge's reply is no number")
    if found[2] is not None and float(found[2]) != high:
        raise ValueError(f"the judge's score is of {found[2]}, expected one of {high:g}")
    return found[1], _share(float(found[1]), low, high)


def read_json(key: str, low: float, high: float, reply: str) -> tuple[str, float]:
    """A `Reader` of an object with a number on this scale, or a truth value."""
    text = _conclusion(reply).strip()
    fenced = _FENCE.search(text)
    found = strict_json.loads(text if fenced is None else fenced[1])
    if not isinstance(found, dict) or key not in found:
        raise ValueError(f"the judge's reply is no JSON object with {key!r}")
    value = found[key]
    if isinstance(value, bool):
        return str(value).lower(), float(value)
    return repr(value)[:100], _share(value, low, high)


def _share(value: object, low: float, high: float) -> float:
    return (as_number(value, "the judge's score", low, high) - low) / (high - low)


def reader_of(kind: Kind, *, letters: Mapping[str, object], key: str, scale: tuple[float, ...]) -> Reader:
    """Raises ValueError for options that make no sense together."""
    if kind == "letter":
        scores = {
            letter: as_number(score, f"letters.{letter}", 0.0, 1.0) for letter, score in letters.items()
        }
        if len(scores) < 2 or not all(re.fullmatch("[A-Z]", letter) for letter in scores):
            raise ValueError(
                f"Option 'letters' is {dict(letters)!r}, expected capital letters, two at least, and their "
                f"scores in [0, 1]."
            )
        return partial(read_letter, scores)
    if len(scale) != 2 or not scale[0] < scale[1]:
        raise ValueError(f"Option 'scale' is {list(scale)!r}, expected the worst and the best score.")
    return partial(read_number, *scale) if kind == "number" else partial(read_json, key, *scale)


def _conclusion(reply: str) -> str:
    """The reply after its thoughts; a thought that is still open has no conclusion."""
    before, closed, conclusion = reply.rpartition("</think>")
    if closed:
        return conclusion
    return "" if "<think>" in conclusion else conclusion


def last_line(reply: str) -> str:
    """The last line of the reply's conclusion; empty where it is long."""
    lines = _conclusion(reply).strip().splitlines()
    line = lines[-1].strip() if lines else ""
    return line if len(line) <= _MAX_LINE_CHARACTERS else ""


_DETAIL_CHARACTERS = 500


class JudgeVerifier:
    takes_any_gold = True
    takes_task = True

    def __init__(
        self,
        *,
        url: str,
        model: str,
        answer: Kind = "letter",
        template: str | None = None,
        letters: dict[str, Any] | None = None,
        key: str = "score",
        scale: tuple[float, ...] = (0.0, 10.0),
        threshold: Annotated[float, Bounds(0.001, 1)] = 0.5,
        max_characters: Annotated[int, Bounds(1, 4_000_000)] = 50_000,
        **chat: Unpack[ChatOptions],
    ) -> None:
        self._model = ChatModel(url, model, **chat)
        self.counters = self._model.counters
        self._read = reader_of(
            answer, letters={"A": 1.0, "B": 0.0} if letters is None else letters, key=key, scale=scale
        )
        constants = {"low": f"{scale[0]:g}", "high": f"{scale[-1]:g}", "key": key}
        if template is None and letters is not None:
            raise ValueError(
                "Option 'letters' needs the option 'template', which tells the judge their meaning."
            )
        self._template = JudgeTemplate(
            TEMPLATES[answer] if template is None else template, constants=constants
        )
        self._threshold = threshold
        self._max_characters = max_characters

    @property
    def pool_timeout_seconds(self) -> float:
        """For a `weighted` verifier, whose parts run in a worker."""
        return self._model.server.longest_seconds

    def check_machine(self) -> None:
        """Raises VerifierUnavailable where the key is not in the environment."""
        self._model.server.check_key()

    def parse_reference(self, raw: object) -> object:
        """Any JSON; null where the judge needs no reference."""
        return json_gold(raw)

    def cache_key(self, response: str, reference: object, task: Task) -> Hashable | None:
        """The text that the judge reads; server, model and sampling are options, which the pool adds."""
        if len(response) > self._max_characters:
            return None
        return self._template.render(response, reference, task)

    def verify(self, response: str, reference: object, task: Task | None = None) -> Verdict:
        """The verdict; blocks. Not inside an event loop: use verify_async."""
        return asyncio.run(self._judge(response, reference, task, in_turn=False))

    async def verify_async(self, response: str, reference: object, task: Task | None = None) -> Verdict:
        """The verdict, awaited."""
        return await self._judge(response, reference, task, in_turn=True)

    async def _judge(self, response: str, reference: object, task: Task | None, *, in_turn: bool) -> Verdict:
        if len(response) > self._max_characters:
            return wrong(detail=f"the response has more than {self._max_characters} characters")
        text = self._template.render(response, reference, task or Task())
        return await answered(self._model.ask(NOTE, text, self._verdict, in_turn=in_turn))

    def _verdict(self, text: str) -> Verdict:
        """Raises ValueError for a reply without a verdict."""
        said, score = self._read(text)
        return Verdict(
            Outcome.CORRECT if score >= self._threshold else Outcome.WRONG,
            score,
            extracted=storable(said),
            detail=storable(text[-_DETAIL_CHARACTERS:]),
            method="judge",
        )
