r"""One \boxed{} or \fbox{}: where it ends and what it holds. Linear in the text, whatever it holds."""

import re

MAX_ANSWER_CHARACTERS = 4000
"""A longer box is no answer a person would read; it also bounds all later work."""
MAX_BOX_CHARACTERS = 4 * MAX_ANSWER_CHARACTERS

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
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
    depth = 0
    limit = at + MAX_BOX_CHARACTERS
    for brace in _BRACE.finditer(text, at, limit):
        symbol = brace.group()
        if symbol == "{":
            depth += 1
        elif symbol == "}":
            depth -= 1
            if depth == 0:
                return brace.end(), text[at + 1 : brace.start()]
    # A box that reaches past the limit is an answer too long to read, not a reason to look for
    # an earlier one.
    return (limit, text[at + 1 : limit]) if limit < len(text) else None


def content_of(box: str) -> str:
    """The text between the braces of a text that is one box."""
    opening = _BOX.match(box)
    assert opening is not None
    return box[opening.end() + 1 : -1]
