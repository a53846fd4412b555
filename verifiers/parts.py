"""Boxes of an answer: where each ends and what it holds, and one box per part of a question."""

import re
from collections.abc import Iterator

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
_NAME = r"(?:[A-Za-z](?:_\{?\w{1,3}\}?)?|[A-Z]{2}|[a-z]\([a-z\d]{1,2}\)|\\[a-z]{2,7}(?:\s?[A-Z]{1,3})?)"
_NAMED = re.compile(rf"(?<![A-Za-z\\])({_NAME})\s{{0,3}}=[\s$]{{0,3}}$")
# Nothing but a joiner and the next name.
_BETWEEN = re.compile(
    rf"(?:[\s$,;*]|\\[,;: ()\[\]]|\\q?quad|\\text\s?\{{\s?(?:and|or)\s?\}}|\b(?:and|or)\b){{1,40}}"
    rf"{_NAME}\s{{0,3}}=[\s$]{{0,3}}"
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
    boxes = _last_boxes(text)
    if len(boxes) < 2:
        return ()
    for kind in _KINDS:
        run = _labelled(text, boxes, kind)
        if run:
            return _contents(text, run)
    return _contents(text, _named(text, boxes))


def _last_boxes(text: str) -> list[_Box]:
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
