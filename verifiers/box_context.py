r"""What stands around a box: what a reader does not see, what denies the box, and what its sign belongs to.

Owns the rules for \phantom{\boxed{42}}, -\boxed{42}, "not \boxed{42}" and 2 \cdot \boxed{21}. Looks at a few
dozen characters on either side, so it is linear in the text; knows the spelling of formulas, not their
meaning."""

from __future__ import annotations

import re

__all__ = ["boxed_in_context", "is_denied", "without_invisible"]

_AROUND = 80
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

# Invisible or crossed out.
_INVISIBLE = re.compile(
    r"\\(?:[hv]?phantom|[bx]?cancel|sout|xout|iffalse)(?![A-Za-z])|\\(?:textcolor|color)\s*\{\s*(?:white|transparent)\s*\}"
    r"|\\begin\s*\{comment\}|<!--|~~|<(?:s|del|strike)>"
)
_ENDS = {
    r"\iffalse": r"\fi", "<!--": "-->", "~~": "~~", "<s>": "</s>", "<del>": "</del>",
    "<strike>": "</strike>",
}  # fmt: skip
# A per cent sign begins a comment of TeX at the start of a line, or after a space that no number precedes:
# "20 % of 50 is \boxed{10}" is prose.
_COMMENT = re.compile(r"^[ \t]*%|(?:(?<=[^\d$\\\s])|(?<=\}\$))[ \t]+%")
_MAX_INVISIBLE = 40
_MAX_STRETCH = 16_000

_DENIED_BEFORE = re.compile(
    r"(?:\b(?:not|never|isn't|wasn't|cannot\s+be|can't\s+be|other\s+than|instead\s+of|rather\s+than)"
    r"(?:\s+(?:equal\s+to|equal|to\s+be|be))?|\\not\s*=?|\\neq?|\\neg|\\lnot|≠|!=)[\s:}]*$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[\s$.,}]*(?:(?:is|was|would\s+be)\s+(?:(?:clearly|obviously)\s+)?(?:wrong|incorrect|false|impossible|rejected|not\b)"
    r"|isn't\b)",
    re.IGNORECASE,
)
_OPENING = re.compile(r"(?:\s|\$|\{|\\[(\[,;:! ]|\\(?:displaystyle|left)(?![A-Za-z]))+$")
_OPERATOR_BEFORE = re.compile(
    r"(?:\\(?:cdot|times|div|ast|sqrt|[dt]?frac|ln|log|lg|exp|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|binom)"
    r"|\\sqrt\s*\[[^\]]{0,9}\]|\\[dt]?frac\s*\{[^{}]{0,40}\}|\^|_|[\w})]\s*/|[\w})]\s*(?<!\*)\*)$"
)
_OPERATOR_AFTER = re.compile(
    r"\s*\}*\s*(?:\^(?!\s*\{?\s*\\(?:circ|degree|prime)|\{?°)|\\(?:cdot|times|div|sqrt|[dt]?frac|pi|ln|log|sin|cos|tan)(?![A-Za-z])"
    r"|\*(?!\*)\s*[\w\\(]|/\s*(?:\d|\(|\\(?!text|math)|[xynk](?![A-Za-z]))|\+\s*[\w\\(]|-\s*[\d\\(])"
    r"|[xyznkbie](?![A-Za-z])|!\s*(?:\$|\\[)\]]|[-+*/^])"
)
_DIGITS_AFTER = re.compile(r"\}*(?:\d|[.,]\d)|\{?,\}?\d{3}|\\[,!]\d{3}")
_SCALE_AFTER = re.compile(
    r"(?:\s|\$|~|\\[,;:! ]|-)*(?:\\(?:text|mathrm|mbox)\s*\{\s*)?"
    r"(?:dozen|hundred|thousand|million|billion|trillion|factorial|squared|cubed)s?\b"
)
_BASE_AFTER = re.compile(r"\s*_\s*(?:\{\s*(\d{1,2})\s*\}|(\d))(?!\d)")
_FORMULA_END = re.compile(r"\$|\\[)\]]|\n")
_NOT_OPERAND = re.compile(r"(?:^|[=:,;(\[{<>&|\n≈≤≥]|\\[A-Za-z]+|\\[,;:! ]|[A-Za-z]{2,}|\})\s*$")
_OPERAND_COMMAND = re.compile(r"\\(?:pi|alpha|beta|theta|phi)\s*$")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_WANTS_VALUE = re.compile(r"\b(?:is|are|be|equals|get|gives|obtain|of|to|than)[\s:]*$", re.IGNORECASE)
_COMPOUND = re.compile(r"[-+=<>,±]|\\(?:pm|mp|text|mathrm)")


def without_invisible(text: str) -> str:
    """The text without boxes that a reader does not see: in \\phantom, comments, crossed out.

    Nothing of it when it has more than _MAX_INVISIBLE such places, which no answer needs."""
    if "%" in text:
        text = "\n".join(map(_without_comment, text.split("\n")))
    pieces: list[str] = []
    at = 0
    for number, found in enumerate(_INVISIBLE.finditer(text)):
        if number >= _MAX_INVISIBLE:
            return ""
        end = _end_of(text, found) if found.start() >= at else None
        if end is not None and "box" in text[found.end() : end]:
            pieces.append(text[at : found.start()])
            at = end
    return "".join(pieces) + text[at:] if pieces else text


def _without_comment(line: str) -> str:
    mark = _COMMENT.search(line) if "%" in line and "box" in line else None
    return line[: mark.start()] if mark is not None and "box" in line[mark.end() :] else line


def _end_of(text: str, opening: re.Match[str]) -> int | None:
    """Where the invisible stretch ends; None when it never does."""
    mark = opening.group()
    closing = r"\end{comment}" if mark.startswith(r"\begin") else _ENDS.get(mark)
    if closing is not None:
        at = text.find(closing, opening.end())
        return at + len(closing) if at >= 0 else None
    # A change of colour holds to the end of the group that it stands in.
    is_switch = mark.startswith(r"\color")
    depth = 0
    for brace in _BRACE.finditer(text, opening.end(), opening.end() + _MAX_STRETCH):
        depth += (brace.group() == "{") - (brace.group() == "}")
        if depth < (0 if is_switch else 1) and brace.group() in "{}":
            return brace.start() if is_switch else brace.end()
    return len(text) if is_switch else None


def is_denied(text: str, start: int, stop: int) -> bool:
    """Whether the words beside the box at text[start:stop] say that it is not the answer."""
    before = _OPENING.sub("", text[max(0, start - _AROUND) : start])
    return (
        _DENIED_BEFORE.search(before) is not None
        or _DENIED_AFTER.match(text, stop, stop + _AROUND) is not None
    )


def boxed_in_context(text: str, start: int, stop: int, content: str) -> str | None:
    r"""The content with the sign and the base that stand outside the box, -\boxed{42} and \boxed{101}_2; None
    when the box is a part of a larger formula, 2 \cdot \boxed{21}.

    A blank that is filled in, 2 \cdot \boxed{21} = 42, is the answer."""
    near = text[max(0, start - _AROUND) : start]
    after = text[stop : stop + _AROUND]
    base = _BASE_AFTER.match(after)
    if base is not None:
        return f"{content}_{{{base.group(1) or base.group(2)}}}"
    if near[-1:].isdecimal() or _DIGITS_AFTER.match(after) or _SCALE_AFTER.match(after):
        return None
    before = _OPENING.sub("", near)
    is_blank = "=" in _FORMULA_END.split(after, maxsplit=1)[0]
    if not is_blank and (_OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(after)):
        return None
    if before.endswith((r"\pm", "±")):
        return rf"\pm {_grouped(content)}"
    if before[-1:] not in ("-", "−", "+"):
        return content
    return _signed(before, near[len(before) :], content, is_blank=is_blank)


def _signed(before: str, between: str, content: str, *, is_blank: bool) -> str | None:
    """The content with the sign at the end of `before`; without it where the sign is a dash or a bullet; None
    where it is an operator."""
    sign, rest = before[-1], before[:-1]
    left = rest.rstrip(" $")
    if sign == "-" and (rest.endswith(("-", ":")) or _is_dash(rest, between)):
        return content
    if _NOT_OPERAND.search(left[-40:]) is None or _OPERAND_COMMAND.search(left) is not None:
        return content if is_blank else None
    return content if sign == "+" else "-" + _grouped(content)


def _is_dash(rest: str, between: str) -> bool:
    """Whether a minus sign is punctuation: "Answer - \\boxed{42}", or the bullet of a list."""
    if not between.startswith(" "):
        return False
    line = rest.rpartition("\n")[2]
    if line.strip():
        is_prose = _WORD.search(line) is not None and not any(mark in line for mark in ("=", "$", "\\"))
        return is_prose and line.endswith(" ") and _WANTS_VALUE.search(line) is None
    return not rest.rstrip().endswith((r"\[", "$$", r"\(", "$", "=", r"\\"))


def _grouped(content: str) -> str:
    return rf"\left({content}\right)" if _COMPOUND.search(content) else content
