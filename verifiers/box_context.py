r"""Text around a box: what a reader does not see, what denies the box, and what its sign belongs to.

Owns the rules for \phantom{\boxed{42}}, -\boxed{42}, "not \boxed{42}" and 2 \cdot \boxed{21}. Looks at a few
dozen characters on either side, and for what is invisible at a few thousand, so it is linear in the text;
knows the spelling of formulas, not their meaning."""

import re

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
# Only at the start of a line is a per cent sign surely a comment of TeX: "x % 5 = \\boxed{2}" is none.
_COMMENT = re.compile(r"[ \t]*%")
_INVISIBLE_MARKS = (
    "phantom", "cancel", "out{", "\\iffalse", "{white", "{transparent", "{comment", "<!--", "~~", "<s>",
    "<del>", "<strike>",
)  # fmt: skip
_MAX_INVISIBLE = 40
_MAX_STRETCH = 2_000

_DENIED_BEFORE = re.compile(
    r"(?:(?<!\bor\s)\b(?:not|never|isn't|wasn't|cannot\s+be|can't\s+be|other\s+than|instead\s+of|rather\s+than)"
    r"(?:\s+(?:equal\s+to|equal|to\s+be|be))?|\\not\s*=?|\\neq?|\\neg|\\lnot|≠|(?<=\s)!=)[\s:}]*$",
    re.IGNORECASE,
)
# Clear words only: "42 is not a prime", "42 is not 43" and "42 was not hard to find" deny nothing.
_DENIED_AFTER = re.compile(
    r"[\s$}]*(?:is|was|would\s+be)(?:\s+(?:clearly|obviously))?(?:\s+(?P<verdict>wrong|incorrect)\b"
    r"|(?:n't|\s+not)\s+(?:(?:a|the|my|our)\s+)?(?:(?:right|correct|final|valid)\b|answer\b|solution\b))",
    re.IGNORECASE,
)
# Is it \boxed{42}? No, 43. But "\boxed{42}? No other solution exists." denies nothing.
_ANSWERED_NO = re.compile(
    r"[\s$}*_)\]]*(?:\\[)\]])?(?:\s*\b(?!(?:but|and|so|is|are|do|does|can|or)\b)[A-Za-z]+){0,3}[\s$}*_)\]]*\?"
    r"[\s$*_)}\]\"']*(?:\\[)\]]\s*)?(?:(?:hmm+|well|wait|oh|actually|alas)[\s,.:!]*){0,3}"
    r"(?:no(?=\s*(?:[,.;:!\u2013\u2014-]|$|(?:it|that|this)\b))|(?:nope|nah|not|never|wrong|incorrect|false)\b"
    r"|(?:it|that|this)(?:'s|\s+is|\s+does)?(?:\s+not|n't)(?=\s*(?:[,.;!]|$|(?:right|correct|it|the|work)\b))"
    r"|i\s+(?:don't|do\s+not)\s+think)",
    re.IGNORECASE,
)
# Which statement is incorrect? \boxed{C} is incorrect.
_LETTER_BOX = re.compile(r"\\[a-z]+\s*\{\s*(?:\\[a-z]+\s*\{\s*)?\(?\s*[A-J]\s*\)?[\s.}]*")
_OPENING = re.compile(r"(?:\s|\$|\{|\\[(\[,;:! ]|\\(?:displaystyle|left)(?![A-Za-z]))+$")
_OPERATOR_BEFORE = re.compile(
    r"(?:\\(?:cdot|times|div|ast|sqrt|[dt]?frac|ln|log|lg|exp|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|binom)"
    r"|\\sqrt\s*\[[^\]]{0,9}\]|\\[dt]?frac\s*\{[^{}]{0,40}\}|\^|_|[\w})]\s*/|(?<![\d.,])-?0[.,]"
    r"|[\w})]\*|[\d})]\s+\*|(?<![A-Za-z])[A-Za-z]\s+\*)$"
)
# "x > \boxed{42}", but no quotation ("> \boxed{42}"), tag or arrow.
_BOUND_BEFORE = re.compile(
    r"(?:(?:^|[\s$({,=])(?:[A-Za-z]|\d+)\s*[<>]|(?<![\\A-Za-z])[A-Za-z\d]\s*\\(?:lt|gt))$"
)
_NEGATIVE_BEFORE = re.compile(r"(?<!or )(?<!non-)(?<!non )\bnegative$", re.IGNORECASE)
# Emphasis of Markdown: *\boxed{42}*, _$\boxed{42}$_; but not 2 *\boxed{21}* 2.
_EMPHASIS_BEFORE = re.compile(r"(?:^|(?<![\d})\s$])(?<![^A-Za-z][A-Za-z]))\s*([*_]{1,3})(?:\$|\\\()?$")
_EMPHASIS_AFTER = re.compile(r"(?:\$|\\\))?[.,:!]?([*_]{1,3})(?![\w\\(])")
_OPERATOR_AFTER = re.compile(
    r"[ \t]*\}*[ \t]*(?:\^(?!\s*\{?\s*(?:\\(?:circ|degree|prime)|°"
    r"|(?:\\(?:text(?:rm)?|mathrm|rm|mbox)\s*\{?\s*)?(?:st|nd|rd|th)\b))"
    r"|\\(?:cdot|times)(?![A-Za-z])(?!\s*\\(?:text|mathrm|mbox))"
    r"|\\(?:div|sqrt|pm|mp|pi|ln|log|sin|cos|tan)(?![A-Za-z])"
    r"|\\[dt]?frac(?![A-Za-z])(?!\s*\{\s*(?:\\(?:text|mathrm|rm|mbox)|(?:[kcm]?m|mi|ft|g|kg)\}))|±"
    r"|\*(?=[\w\\(])|(?<=[ \t])\*\s+[\w\\(]"
    r"|/\s*(?:\d|\(|\\(?!text|math)|[xynk](?![A-Za-z]))|\+\s*[\w\\(]|-\s*(?:\d|\(|\\(?!text|mathrm|quad)))"
    r"|[xyznkbie](?![A-Za-z])|!\s*(?:\$|\\[)\]]|[-+*/^])"
)
_DIGITS_AFTER = re.compile(r"\}*(?:\d|[.,:]\d)|\{?,\}?\d{3}|\\[,!]\d{3}")
_SCALE_AFTER = re.compile(
    r"(?:\s|\$|~|\\[,;:! ]|-|\\cdot)*(?:\\(?:text|mathrm|mbox)\s*\{\s*)?"
    r"(?:(?:dozen|hundred|thousand|million|billion|trillion|factorial|squared|cubed)s?\b|times\s*\$?\d)"
)
# "(\boxed{42}, 43)" and "$\boxed{42}$ or $43$" hold another answer.
_POINT_AFTER = re.compile(r"\s*,\s*(?:-?\d+(?:\.\d+)?|[a-z])\s*(?:\\right)?[)\]]")
_OR_AFTER = re.compile(
    r"[\s$]*(?:\\(?:text|mbox)\s*\{\s*)?or\b[\s}$]*(-?\d+)(?![\d.,]*\d)\s*(?![\s$]*[\w%\\/^*+-])"
)
_BASE_AFTER = re.compile(r"\s*_\s*(?:\{\s*(\d{1,2})\s*\}|(\d))(?!\d)")
_FORMULA_END = re.compile(r"\$|\\[)\]]|\n")
_NOT_OPERAND = re.compile(r"(?:^|[=:,;(\[{<>&|\n≈≤≥]|\\[A-Za-z]+|\\[,;:! ]|[A-Za-z]{2,}|\})\s*$")
_OPERAND_COMMAND = re.compile(r"\\(?:pi|alpha|beta|theta|phi)\s*$")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_WANTS_VALUE = re.compile(r"\b(?:is|are|be|equals|get|gives|obtain|of|to|than)[\s:]*$", re.IGNORECASE)
_NUMBERED = re.compile(r"\b(?:step|part|case|problem|question|exercise|example|answer)\s+#?\d+\s*$", re.I)
_COMPOUND = re.compile(r"[-+=<>,±]|\\(?:pm|mp|text|mathrm)")


def end_of_group(text: str, start: int, limit: int, *, depth: int = 1) -> int | None:
    """Behind the brace that closes the `depth` groups that are open at `start`; 0: the next group. None when
    it stands at no place before `limit`."""
    for brace in _BRACE.finditer(text, start, limit):
        depth += (brace.group() == "{") - (brace.group() == "}")
        if depth < 1 and brace.group() in "{}":
            return brace.end()
    return None


def is_denied(text: str, start: int, stop: int) -> bool:
    """Whether the words around the box at text[start:stop] say that it is not the answer."""
    near = text[max(0, start - _AROUND) : start]
    if _DENIED_BEFORE.search(_OPENING.sub("", near)) or _ANSWERED_NO.match(text, stop, stop + _AROUND):
        return True
    denial = _DENIED_AFTER.match(text, stop, stop + _AROUND)
    if denial is None:
        return False
    return denial.group("verdict") is None or _LETTER_BOX.fullmatch(text, start, stop) is None


def is_hidden(text: str, start: int) -> bool:
    """Whether the box at text[start:] is in a comment, crossed out or invisible."""
    line = text[max(text.rfind("\n", 0, start) + 1, start - _MAX_STRETCH) : start]
    return ("%" in line and _COMMENT.match(line) is not None) or _is_invisible(text, start)


def _is_invisible(text: str, start: int) -> bool:
    """Whether one of the stretches that begin in the characters before holds the box, or they are more than
    any answer needs."""
    first = max(0, start - _MAX_STRETCH)
    before = text[first:start]
    if not any(mark in before for mark in _INVISIBLE_MARKS):
        return False
    at = first
    for number, found in enumerate(_INVISIBLE.finditer(text, first, start)):
        if number >= _MAX_INVISIBLE:
            return True
        if found.start() < at:
            continue
        end = _end_of(text, found)
        if end is not None and end > start:
            return True
        at = end or at
    return False


def _end_of(text: str, opening: re.Match[str]) -> int | None:
    """Where the invisible stretch ends; None when it never does."""
    mark = opening.group()
    closing = r"\end{comment}" if mark.startswith(r"\begin") else _ENDS.get(mark)
    if closing is not None:
        at = text.find(closing, opening.end(), opening.end() + 2 * _MAX_STRETCH)
        return at + len(closing) if at >= 0 else None
    # A change of color holds to the end of the group that it stands in.
    is_switch = mark.startswith(r"\color")
    end = end_of_group(text, opening.end(), opening.end() + 2 * _MAX_STRETCH, depth=int(is_switch))
    return end if end is not None or not is_switch else len(text)


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
    if _is_one_of_several(near, after, content):
        return None
    near, after = _without_emphasis(near, after)
    before = _OPENING.sub("", near)
    is_blank = "=" in _FORMULA_END.split(after, maxsplit=1)[0]
    # Whether the formula uses the box: an operator or a strict bound next to it.
    if not is_blank and (
        _OPERATOR_BEFORE.search(before) or _BOUND_BEFORE.search(before) or _OPERATOR_AFTER.match(after)
    ):
        return None
    if _NEGATIVE_BEFORE.search(before):
        return content if content.lstrip().startswith("-") else f"-{_grouped(content)}"
    if before.endswith((r"\pm", "±")):
        return rf"\pm {_grouped(content)}"
    if before[-1:] not in ("-", "−", "+"):
        return content
    return _signed(before, near[len(before) :], content, is_blank=is_blank)


def _is_one_of_several(near: str, after: str, content: str) -> bool:
    """Whether the words or the brackets around the box hold another answer than it."""
    if near.endswith(("(", "[")) and not near.endswith(("\\(", "\\[")) and _POINT_AFTER.match(after):
        return True
    other = _OR_AFTER.match(after)
    number = content.strip()
    return other is not None and number.lstrip("-").isdecimal() and int(number) != int(other.group(1))


def _without_emphasis(near: str, after: str) -> tuple[str, str]:
    """Text around the box, outside of asterisks and underscores that only stress it."""
    opening, closing = _EMPHASIS_BEFORE.search(near), _EMPHASIS_AFTER.match(after)
    if opening is None or closing is None or opening.group(1) != closing.group(1):
        return near, after
    return near[: opening.start(1)], after[closing.end() :]


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
    if line.rstrip().endswith((".", "!", "?")) or _NUMBERED.search(line) is not None:
        return True
    if line.strip():
        is_prose = (
            not line.rstrip()[-1].isdecimal()
            and _WORD.search(line) is not None
            and not any(mark in line for mark in ("=", "$", "\\"))
        )
        return is_prose and line.endswith(" ") and _WANTS_VALUE.search(line) is None
    return not rest.rstrip().endswith((r"\[", "$$", r"\(", "$", "=", r"\\"))


def _grouped(content: str) -> str:
    return rf"\left({content}\right)" if _COMPOUND.search(content) else content
