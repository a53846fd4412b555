r"""From a response to the text of its answer. Owns the policy of which text counts; knows no mathematics.

The order: what stands after the last `</think>`; in it the last balanced \boxed{} or \fbox{} that a reader
sees and that the words around it do not deny (a box of an earlier sentence never stands in for one that is
passed over); then the configured fallbacks in their order. A box takes the sign that stands outside it along,
and is no answer as a part of a larger formula (`box_context`). Linear in the length of the response, whatever
it holds. Several boxes in one breath ("\boxed{42} or \boxed{43}") are one answer with several candidates: the
comparison decides whether that is right. A full stop or an empty line between two boxes begins a new
sentence, and then the last one counts. Labelled or named boxes, one per part of a question, are told as
parts, too."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from verifiers.box_context import boxed_in_context, end_of_group, is_denied, is_hidden

MAX_ANSWER_CHARACTERS = 4000
"""A longer box is no answer a person would read; it also bounds all later work."""
MAX_BOX_CHARACTERS = 4 * MAX_ANSWER_CHARACTERS

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_SINGLE_TOKEN = re.compile(r"\d|[A-Za-z]|\\(?!boxed|fbox)[A-Za-z]+")


def box_at(text: str, start: int) -> tuple[int, str] | None:
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
    limit = at + MAX_BOX_CHARACTERS
    end = end_of_group(text, at + 1, limit)
    if end is not None:
        return end, text[at + 1 : end - 1]
    # A box that reaches past the limit is an answer too long to read, not a reason to look for
    # an earlier one.
    return (limit, text[at + 1 : limit]) if limit < len(text) else None


def content_of(box: str) -> str:
    """The text between the braces of a text that is one box."""
    opening = _BOX.match(box)
    assert opening is not None
    return box[opening.end() + 1 : -1]


MAX_PARTS = 8

_ROMAN = {numeral: at for at, numeral in enumerate("i ii iii iv v vi vii viii".split(), start=1)}
_LABELS = ("[a-h]", "|".join(sorted(_ROMAN, key=len, reverse=True)), "[1-8]")
_PART_NAME = r"(?:[A-Za-z](?:_\{?\w{1,3}\}?)?|[A-Z]{2}|[a-z]\([a-z\d]{1,2}\)|\\[a-z]{2,7}(?:\s?[A-Z]{1,3})?)"
_NAMED = re.compile(rf"(?<![A-Za-z\\])({_PART_NAME})\s{{0,3}}=[\s$]{{0,3}}$")
# Nothing but a joiner and the next name.
_BETWEEN = re.compile(
    rf"(?:[\s$,;*]|\\[,;: ()\[\]]|\\q?quad|\\text\s?\{{\s?(?:and|or)\s?\}}|\b(?:and|or)\b){{1,40}}"
    rf"{_PART_NAME}\s{{0,3}}=[\s$]{{0,3}}"
)
_MAX_BETWEEN = 80

_Box = tuple[int, int, str]


def _pattern(label: str) -> re.Pattern[str]:
    r"""A label: (a) or Part a in the text, a) and a. at the start of a line; f(a) is none."""
    return re.compile(
        rf"(?<![\w\\)}}])\(({label})\)|^[ \t*_#>-]{{0,8}}({label})[.)](?!\d)|\b[Pp]art[ ~]\(?({label})\b",
        re.MULTILINE,
    )


_KINDS = tuple(map(_pattern, _LABELS))


def boxes_of_parts(text: str) -> tuple[str, ...]:
    """The boxes of the last run of parts, in order, with the names before them; empty when there is none."""
    boxes = _boxes_at_end(text)
    if len(boxes) < 2:
        return ()
    for kind in _KINDS:
        run = _labelled(text, boxes, kind)
        if run:
            return _contents(text, run)
    return _contents(text, _named(text, boxes))


def _boxes_at_end(text: str) -> list[_Box]:
    """The last boxes in order of appearance, one more than a run may have; none where one holds another."""
    found: list[_Box] = []
    end = len(text)
    while len(found) <= MAX_PARTS:
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            break
        box = box_at(text, start)
        if box is None or (found and box[0] > found[0][0]):
            return found if box is None else []
        found.insert(0, (start, *box))
        end = start
    return found


def _labelled(text: str, boxes: list[_Box], kind: re.Pattern[str]) -> list[_Box]:
    """The last boxes, when they have the labels 1, 2, ... since the box before each; else none."""
    last = next(_ordinals(kind, text, boxes[-2][1], boxes[-1][0]), 0)
    if not 2 <= last <= min(MAX_PARTS, len(boxes)):
        return []
    run = boxes[-last:]
    for number, (before, box) in enumerate(zip(run, run[1:], strict=False), start=2):
        if next(_ordinals(kind, text, before[1], box[0]), 0) != number:
            return []
    # What is asked may be told with its labels before the first part begins.
    begin = boxes[-last - 1][1] if len(boxes) > last else 0
    first = list(_ordinals(kind, text, begin, run[0][0]))
    goes_further = any(number > last for number in _ordinals(kind, text, run[-1][1], len(text)))
    return run if first[-1:] == [1] and not goes_further else []


def _ordinals(kind: re.Pattern[str], text: str, start: int, stop: int) -> Iterator[int]:
    for match in kind.finditer(text, start, stop):
        label = next(group for group in match.groups() if group)
        yield _ROMAN.get(label) or (int(label) if label.isdecimal() else ord(label) - ord("a") + 1)


def _named(text: str, boxes: list[_Box]) -> list[_Box]:
    run = boxes[-1:]
    for box in reversed(boxes[:-1]):
        between = text[box[1] : run[0][0]]
        if len(between) > _MAX_BETWEEN or not _BETWEEN.fullmatch(between):
            break
        run.insert(0, box)
    return run if 2 <= len(run) <= MAX_PARTS else []


def _contents(text: str, run: list[_Box]) -> tuple[str, ...]:
    """The contents of the boxes; nothing at all when one of them is no answer of its own."""
    contents: list[str] = []
    for start, stop, content in run:
        told = boxed_in_context(text, start, stop, content)
        if is_hidden(text, start) or is_denied(text, start, stop):
            return ()
        if told is None or not told.strip(" \n\t$~") or len(told) > MAX_ANSWER_CHARACTERS:
            return ()
        name = _NAMED.search(text, max(0, start - 40), start)
        contents.append(told.strip() if name is None else f"{name.group(1)} = {told.strip()}")
    return tuple(contents)


# Each finder takes the text after the thought and returns the answer, or None. Linear in the
# length of the text.
_LINE = re.compile(
    r"^[ \t*_>#-]{0,12}(?:A|Ans|Answer)[*_]{0,3}[ \t]*[:=][*_]{0,3}[ \t]*(\S[^\n]*)$", re.MULTILINE
)
_OTHER_OPTION = re.compile(r"^[ \t*_>#-]{0,12}[B-E][*_]{0,3}[ \t]*:", re.MULTILINE)
_NUMBER = re.compile(
    r"(?<![\w.])-?\$?(?:\d{1,3}(?:,\d{3})+|\d{1,400})(?:\.\d{1,400})?(?:/\d{1,200})?%?(?![\w])"
)
_LAST_CHARACTERS = 20_000
_ENDS = " \t\r\n*_`"


def answer_tag(text: str) -> str | None:
    """Content of the last <answer>...</answer>; None when the last one never closes."""
    start = text.rfind("<answer>")
    end = text.rfind("</answer>")
    if start < 0 or end < start:
        return None
    return text[start + len("<answer>") : end].strip(_ENDS) or None


def answer_line(text: str) -> str | None:
    """The rest of the last line that begins with "A:", "Ans:" or "Answer:".

    A list of options, A: and then B:, has no such line."""
    lines = list(_LINE.finditer(text))
    if not lines or _OTHER_OPTION.search(text, lines[-1].end()):
        return None
    answer = lines[-1].group(1).strip(_ENDS)
    return answer.removesuffix(".").strip(_ENDS) or None


def last_number(text: str) -> str | None:
    """The last number, with its sign and its percent sign, among the last 20,000 characters."""
    numbers = _NUMBER.findall(text[-_LAST_CHARACTERS:])
    return numbers[-1].replace("$", "") if numbers else None


Fallback = Literal["final_answer", "hashes", "last_line", "answer_tag", "answer_line", "last_number"]
"""Where the answer may stand when there is no box; none of them is looked at without its option."""

Think = Literal["optional", "required", "ignore"]
"""Whether a thought that ends with </think> may, must or must not be looked for before the answer."""

# More boxes than this that do not close are an attack or a broken sampler, not an answer.
_MAX_BOX_ATTEMPTS = 24
# Read for all boxes together.
_MAX_READ_CHARACTERS = 4 * MAX_BOX_CHARACTERS

# Between two boxes of one breath: spaces, dollars, punctuation and joining words, in any order,
# but no sentence.
_ONE_BREATH = re.compile(
    r"(?:[\s$,;:/|&*%.()\[\]\\]|\b(?:or|and|either|also|both|maybe|perhaps|possibly|alternatively|"
    r"text|quad|qquad|mathrm|lor|vee|land|wedge|textbf)\b|[{}])*",
    re.IGNORECASE,
)
_MAX_BREATH = 60
# A full stop or an empty line begins a new sentence, whose box replaces the one before.
_NEW_SENTENCE = re.compile(r"\.[$\s)\]\\]*\s|\n\s*\n")
# The same where the later box is passed over.
_SENTENCE_END = re.compile(r"[.!?][$\s)\]\\]*\s|\n\s*\n")
_JOINER = re.compile(r"[A-Za-z]|[,;/&|]")
_SENTENCE = re.compile(
    r"(?<![\\A-Za-z])(?:is|are|was|equals|gives|get|obtain|therefore|thus|hence|so|answer|result|solution|final)"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)

# Every run of spaces is bounded and never given back: a response may hold a million of them, many times.
_FINAL_ANSWER = re.compile(
    r"answer(?:\s{1,20}+to\s{1,20}+[^\n.:]{0,80})?[*_]{0,2}\s{0,20}+(?:is|:|=|are)(?:\s{0,20}+:)?[*_]{0,2}",
    re.IGNORECASE,
)
_MAX_CLOSING_CHARACTERS = 100_000
"""The last part of a response, in which its final answer is announced."""
_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))


@dataclass(frozen=True, slots=True)
class Extraction:
    answer: str | None
    """None: no answer; `reason` says why."""
    method: str = ""
    reason: str = ""
    candidates: tuple[str, ...] = ()
    """The boxes of one breath when there are several, in order; empty otherwise."""
    parts: tuple[str, ...] = ()
    """The boxes of the parts of an answer, one each, in order; empty when it does not have them."""


def final_part(response: str, *, think: str = "optional") -> tuple[str | None, str]:
    """Text after the last `</think>`, or (None, reason). `think` is "optional", "required" or "ignore"."""
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
        found = _from_boxes(boxes)
        parts = () if found.answer is None else boxes_of_parts(text)
        return replace(found, parts=parts) if parts else found
    marked = marked_answer(text, fallbacks)
    if marked is not None:
        return Extraction(marked[0], method=marked[1])
    if "\\boxed" in text:
        last = box_at(text, text.rfind("\\boxed"))
        if last is not None:
            return Extraction(None, reason="the \\boxed{} is denied by the words around it or not visible")
        return Extraction(None, reason="a \\boxed{} was opened but never closed")
    return Extraction(None, reason="no \\boxed{} in the response")


def last_box(text: str) -> str | None:
    """The content of the last balanced box, or None."""
    boxes = _last_boxes(text)
    return boxes[-1] if boxes else None


def _from_boxes(found: Sequence[str | None]) -> Extraction:
    boxes = [box for box in found if box is not None]
    if len(boxes) < len(found):
        return Extraction(None, reason="the last box is only a part of a formula")
    if len(max(boxes, key=len)) > MAX_ANSWER_CHARACTERS:
        return Extraction(None, reason=f"the box holds more than {MAX_ANSWER_CHARACTERS} characters")
    if not boxes[-1].strip(" \n\t$~"):
        return Extraction(None, reason="the last box is empty")
    distinct = [boxes[0].strip()] if len(boxes) == 1 else list(dict.fromkeys(box.strip() for box in boxes))
    if len(distinct) == 1:
        return Extraction(distinct[0], method="boxed")
    return Extraction(", ".join(distinct), method="boxed", candidates=tuple(distinct))


def _last_boxes(text: str) -> list[str | None] | None:
    """The last box, and the boxes before it that belong to the same breath, in order of appearance. None: a
    box that is only a part of a formula. A box that is hidden or denied by the words around it is passed
    over, but never for a box of an earlier sentence."""
    found: list[tuple[int, int, str]] = []
    num_read = 0
    passed_over: int | None = None
    # Where each command stands last, before what has been looked at.
    boxed, fbox = text.rfind("\\boxed"), text.rfind("\\fbox")
    for _ in range(_MAX_BOX_ATTEMPTS):
        start = max(boxed, fbox)
        if start < 0 or num_read > _MAX_READ_CHARACTERS:
            break
        if start == boxed:
            boxed = text.rfind("\\boxed", 0, start)
        else:
            fbox = text.rfind("\\fbox", 0, start)
        box = box_at(text, start)
        num_read += MAX_BOX_CHARACTERS if box is None else box[0] - start
        if box is None:
            if found and text.find("{", start, found[0][0]) >= 0:
                # A box that never closes and holds the later ones: not of their breath.
                break
            continue
        stop, content = box
        if passed_over is not None and not found and _SENTENCE_END.search(text, stop, passed_over):
            break
        if is_hidden(text, start) or is_denied(text, start, stop):
            passed_over = start
            continue
        if found and stop > found[0][0]:
            # This box encloses what was found: unwrap the inner box in place, or take it out of its sentence.
            words = text[start : found[0][0]] + " " + text[found[0][1] : stop]
            if len(found) == 1 and _SENTENCE.search(words):
                # The words of the outer box are a sentence about the inner one: \text{The answer is } ...
                found = [(start, stop, boxed_in_context(text, *found[0]) or found[0][2])]
                continue
            outer, at = "", start
            for inner_start, inner_stop, kept in found:
                outer, at = outer + text[at:inner_start] + kept, inner_stop
            found = [(start, stop, content_of(outer + text[at:stop]))]
            continue
        if found:
            between = text[stop : found[0][0]]
            if len(between) > _MAX_BREATH or not _ONE_BREATH.fullmatch(between):
                break
            if _NEW_SENTENCE.search(between) and not _JOINER.search(between):
                break
        found.insert(0, (start, stop, content))
    return [boxed_in_context(text, *box) for box in found] or None


def _final_answer(text: str) -> str | None:
    text = text[-_MAX_CLOSING_CHARACTERS:]
    found = list(_FINAL_ANSWER.finditer(text))
    if not found:
        return None
    line = text[found[-1].end() :].lstrip().partition("\n")[0]
    # A full stop ends the answer when a space or nothing follows it: "3.14. So" is 3.14.
    line = re.split(r"\.(?=\s|$)", line, maxsplit=1)[0]
    return _without_markup(line) or None


def _without_markup(line: str) -> str:
    # Not by a pattern that is anchored at the end: it would try again at each of 40,000 asterisks.
    return line.lstrip(_SPACES + "*_#>`-").rstrip(_SPACES + "*_`")


def _hashes(text: str) -> str | None:
    at = text.rfind("####")
    if at < 0:
        return None
    return _without_markup(text[at + 4 :].lstrip().partition("\n")[0]) or None


def _last_line(text: str) -> str | None:
    line = text.rstrip().rpartition("\n")[2]
    line = _without_markup(line)
    return line[:-1] if line.endswith(".") else line or None


_FALLBACK_FINDERS = {
    "final_answer": _final_answer,
    "hashes": _hashes,
    "last_line": _last_line,
    "answer_tag": answer_tag,
    "answer_line": answer_line,
    "last_number": last_number,
}
