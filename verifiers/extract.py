r"""From a response to the text of its answer. Owns the policy of which text counts; knows no mathematics.

The order: what stands after the last `</think>`; in it the last balanced \boxed{} or \fbox{}; then the
configured fallbacks in their order. Linear in the length of the response, whatever it holds. Several boxes in
one breath ("\boxed{42} or \boxed{43}") are one answer with several candidates: the comparison decides whether
that is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verifiers.marked_answer import answer_line, answer_tag, last_number

__all__ = [
    "FALLBACKS", "MAX_ANSWER_CHARACTERS", "Extraction", "extract_answer", "final_part", "last_box",
    "marked_answer",
]  # fmt: skip

MAX_ANSWER_CHARACTERS = 4000
"""A longer box is no answer a person would read; it also bounds all later work."""

FALLBACKS = ("final_answer", "hashes", "last_line", "answer_tag", "answer_line", "last_number")
"""Where the answer may stand when there is no box; none of them is looked at without its option."""

# More boxes than this that do not close are an attack or a broken sampler, not an answer.
_MAX_BOX_ATTEMPTS = 24
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SINGLE_TOKEN = re.compile(r"\d|[A-Za-z]|\\(?!boxed|fbox)[A-Za-z]+")

# Between two boxes of one breath: spaces, dollars, punctuation and joining words, in any order, but no
# sentence.
_ONE_BREATH = re.compile(
    r"(?:[\s$,;:/|&*.()\[\]\\]|\b(?:or|and|either|also|both|maybe|perhaps|possibly|alternatively|"
    r"text|quad|qquad|mathrm|lor|vee|land|wedge|textbf)\b|[{}])*",
    re.IGNORECASE,
)
_MAX_BREATH = 60

_FINAL_ANSWER = re.compile(
    r"(?:final\s+answer|answer)(?:\s+to\s+[^\n.:]{0,80})?[*_]{0,2}\s*(?:is|:|=|are)(?:\s*:)?[*_]{0,2}\s*",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"^[\s*_#>`-]+|[\s*_`]+$")


@dataclass(frozen=True, slots=True)
class Extraction:
    answer: str | None
    """None: no answer; `reason` says why."""
    method: str = ""
    reason: str = ""
    candidates: tuple[str, ...] = ()
    """The boxes of one breath when there are several, in order; empty otherwise."""


def final_part(response: str, *, think: str = "optional") -> tuple[str | None, str]:
    """What stands after the last `</think>`, or (None, reason). `think` is "optional", "required" or
    "ignore"."""
    if think == "ignore":
        return response, ""
    close = response.rfind("</think>")
    if close < 0 and think == "required":
        return None, "no </think>: the response never finished thinking"
    rest = response[close + len("</think>") :] if close >= 0 else response
    if "<think>" in rest:
        return None, "a <think> is open at the end: the response never finished thinking"
    return rest, ""


def marked_answer(text: str, fallbacks: Sequence[str]) -> tuple[str, str] | None:
    """(answer, fallback) of the first fallback that finds one in `text`, or None."""
    for fallback in fallbacks:
        answer = _FALLBACK_FINDERS[fallback](text)
        if answer and len(answer) <= MAX_ANSWER_CHARACTERS:
            return answer, fallback
    return None


def extract_answer(response: str, *, fallbacks: Sequence[str] = (), think: str = "optional") -> Extraction:
    text, reason = final_part(response, think=think)
    if text is None:
        return Extraction(None, reason=reason)
    boxes = _last_boxes(text)
    if boxes is not None:
        return _from_boxes(boxes)
    marked = marked_answer(text, fallbacks)
    if marked is not None:
        return Extraction(marked[0], method=marked[1])
    if "\\boxed" in text:
        return Extraction(None, reason="a \\boxed{} was opened but never closed")
    return Extraction(None, reason="no \\boxed{} in the response")


def last_box(text: str) -> str | None:
    """The content of the last balanced box, or None."""
    boxes = _last_boxes(text)
    return boxes[-1] if boxes else None


def _from_boxes(boxes: list[str]) -> Extraction:
    if any(len(box) > MAX_ANSWER_CHARACTERS for box in boxes):
        return Extraction(None, reason=f"the box holds more than {MAX_ANSWER_CHARACTERS} characters")
    if not boxes[-1].strip(" \n\t$~"):
        return Extraction(None, reason="the last box is empty")
    distinct = list(dict.fromkeys(box.strip() for box in boxes))
    if len(distinct) == 1:
        return Extraction(distinct[0], method="boxed")
    return Extraction(", ".join(distinct), method="boxed", candidates=tuple(distinct))


def _last_boxes(text: str) -> list[str] | None:
    """The last box, and the boxes before it that belong to the same breath, in order of appearance."""
    found: list[tuple[int, int, str]] = []
    end = len(text)
    for _ in range(_MAX_BOX_ATTEMPTS):
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            break
        end = start
        box = _box_at(text, start)
        if box is None:
            if found and text.find("{", start, found[0][0]) >= 0:
                # A box that never closes and holds the later ones: not of their breath.
                break
            continue
        stop, content = box
        if found and stop > found[0][0]:
            # This box encloses what was found: unwrap the inner box in place.
            inner = "".join(
                text[a:b] if keep is None else keep for a, b, keep in _unwrapped(start, stop, found)
            )
            found = [(start, stop, _content_of(inner))]
            continue
        if found:
            between = text[stop : found[0][0]]
            if len(between) > _MAX_BREATH or not _ONE_BREATH.fullmatch(between):
                break
        found.insert(0, (start, stop, content))
    return [content for _, _, content in found] or None


def _unwrapped(start: int, stop: int, inner: list[tuple[int, int, str]]) -> list[tuple[int, int, str | None]]:
    """The stretches of text[start:stop], with each inner box replaced by its content."""
    pieces: list[tuple[int, int, str | None]] = []
    at = start
    for inner_start, inner_stop, content in inner:
        pieces.append((at, inner_start, None))
        pieces.append((0, 0, content))
        at = inner_stop
    pieces.append((at, stop, None))
    return pieces


def _content_of(box: str) -> str:
    opening = _BOX.match(box)
    assert opening is not None
    return box[opening.end() + 1 : -1]


def _box_at(text: str, start: int) -> tuple[int, str] | None:
    """(end, content) of the box that begins at `start`, or None when it does not close."""
    opening = _BOX.match(text, start)
    if opening is None:
        return None
    at = opening.end()
    if at >= len(text):
        return None
    if text[at] != "{":
        single = _SINGLE_TOKEN.match(text, at)
        return (single.end(), single.group()) if single else None
    depth = 0
    limit = at + 4 * MAX_ANSWER_CHARACTERS
    for brace in _BRACE.finditer(text, at, limit):
        symbol = brace.group()
        if symbol == "{":
            depth += 1
        elif symbol == "}":
            depth -= 1
            if depth == 0:
                return brace.end(), text[at + 1 : brace.start()]
    # A box that goes on past the limit is an answer too long to read, not a reason to look for an earlier
    # one.
    return (limit, text[at + 1 : limit]) if limit < len(text) else None


def _final_answer(text: str) -> str | None:
    found = list(_FINAL_ANSWER.finditer(text))
    if not found:
        return None
    last = found[-1]
    line = text[last.end() :].lstrip().partition("\n")[0]
    # A full stop ends the answer when a space or nothing follows it: "3.14. So" is 3.14.
    line = re.split(r"\.(?=\s|$)", line, maxsplit=1)[0]
    return _MARKUP.sub("", line) or None


def _hashes(text: str) -> str | None:
    at = text.rfind("####")
    if at < 0:
        return None
    return _MARKUP.sub("", text[at + 4 :].lstrip().partition("\n")[0]) or None


def _last_line(text: str) -> str | None:
    line = text.rstrip().rpartition("\n")[2]
    line = _MARKUP.sub("", line)
    return line[:-1] if line.endswith(".") else line or None


_FALLBACK_FINDERS = {
    "final_answer": _final_answer,
    "hashes": _hashes,
    "last_line": _last_line,
    "answer_tag": answer_tag,
    "answer_line": answer_line,
    "last_number": last_number,
}
