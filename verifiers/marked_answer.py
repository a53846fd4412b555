"""Answers that a response marks in other ways than a box: tags, a line "A: 34", or its last number.

Each finder takes the text after the thought and returns the answer, or None. Linear in the
length of the text."""

import re

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
