r"""The letters that an answer chooses. Owns the grammar; knows no row.

    answer  := lead* (chosen | label text)
    lead    := [the | my] [correct | right | best | final] (option | choice | answer) [is | are | : | =]
    chosen  := letter (separator letter)* | capitals without a space
    letter  := B | (B) | [B], each with a full stop after it, or none
    label   := (B) | [B] | B. | B) | B:
    separator := , | ; | & | / | and | nothing between brackets

The text after a label is the option's own text or restates the letter ("B. The answer is B"). Whether it
is the option's is for the row to say (`verifiers.choice`), or else for `verifiers.option_text`."""

import re
from dataclasses import dataclass

from verifiers.option_text import is_option_text

_STYLE = (
    r"\\(?:text(?:bf|rm|it|sf|tt|normal|up|sc)?|math(?:rm|bf|sf|it|normal)|mbox|hbox|boxed|fbox|emph|underline|bf|rm|it)"
    r"(?![A-Za-z])\s*"
)
_STYLED = re.compile(_STYLE + r"\{((?:[^{}]|\{[^{}]*\})*)\}")
_MARKUP = re.compile(
    _STYLE + r"|\\(?:left|right|quad|qquad|displaystyle)(?![A-Za-z])|\*\*|[$~`]|\\[ ,;:!()\[\]]"
)
_MAX_NESTED = 4
_LEAD = re.compile(
    r"(?:(?:the|my)\s+)?(?:(?:correct|right|best|final)\s+){0,2}(?:option|choice|answer)s?\b"
    r"\s*(?:(?:is|are)\b|=)?\s*:?\s*",
    re.IGNORECASE,
)
_LETTER = r"(?:\(\s*[A-Za-z]\s*\)|\[\s*[A-Za-z]\s*\]|[A-Za-z]\s*\)|(?<![A-Za-z])[A-Za-z](?![A-Za-z]))"
_LIST = re.compile(rf"{_LETTER}(?:\s*(?:[,;&/]\s*(?:and\b)?|and\b|(?<=[)\]]))\s*{_LETTER})*", re.IGNORECASE)
_CAPITALS = re.compile(r"[A-Z]{2,26}")
_LABEL = re.compile(
    r"(?:\(\s*(?P<round>[A-Za-z])\s*\)|\[\s*(?P<square>[A-Za-z])\s*\])\s*[.:]?\s*(?P<after>.*)"
    r"|(?P<plain>[A-Za-z])\s*(?P<mark>[.):])\s*(?P<text>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LetterChoice:
    letters: frozenset[str]
    """In capitals; one of them where there is a text."""
    text: str = ""
    """Text after the letter, its markup gone but its formulas as written; empty for nothing."""
    is_abbreviation: bool = False
    """A full stop stands between letter and text, as in E. coli."""

    def may_stand(self, letters: str) -> bool:
        """Whether the text may be an option's, for all that is known without the row."""
        (letter,) = self.letters if self.text else ("",)
        plain = " ".join(self.text.replace("{", " ").replace("}", " ").split())
        return is_option_text(plain, letter, letters, after_full_stop=self.is_abbreviation)


def read_choice(answer: str, letters: str) -> LetterChoice | None:
    """The choice among `letters`, with the text that it may have; None for anything else."""
    plain = without_markup(answer).strip(" .,;:")
    plain = _without_lead(plain)
    chosen = _only_letters(plain, letters)
    if chosen is not None:
        return LetterChoice(chosen)
    label = _LABEL.fullmatch(plain)
    if label is None:
        return None
    letter = (label["round"] or label["square"] or label["plain"]).upper()
    text = (label["after"] or label["text"] or "").strip()
    if letter not in letters:
        return None
    chosen = frozenset(letter)
    if not text or _only_letters(_without_lead(text), letters) == chosen:
        return LetterChoice(chosen)
    return LetterChoice(chosen, text, is_abbreviation=label["mark"] == ".")


def chosen_letters(answer: str, letters: str) -> frozenset[str] | None:
    """The letters that the answer chooses, for all that is known without the row's options; else None."""
    choice = read_choice(answer, letters)
    return choice.letters if choice is not None and choice.may_stand(letters) else None


def without_markup(text: str) -> str:
    """The text without styles, dollars and emphasis, with single spaces. Formulas keep their braces."""
    for _ in range(_MAX_NESTED):
        text, num_changed = _STYLED.subn(r"\1", text)
        if not num_changed:
            break
    text = " ".join(_MARKUP.sub(" ", text).split()).strip("*_ ")
    while text.startswith("{") and text.endswith("}") and "}" not in text[:-1]:
        text = text[1:-1].strip()
    return text


def _without_lead(text: str) -> str:
    for _ in range(2):
        lead = _LEAD.match(text)
        if lead is None:
            break
        text = text[lead.end() :]
    return text


def _only_letters(text: str, letters: str) -> frozenset[str] | None:
    """The letters when there is nothing else, each once."""
    text = text.strip(" .,;:")
    if len(text) > 100:
        return None
    if _CAPITALS.fullmatch(text):
        return frozenset(text) if set(text) <= set(letters) and len(set(text)) == len(text) else None
    if _LIST.fullmatch(text) is None:
        return None
    chosen = {run.upper() for run in re.findall(r"[A-Za-z]+", text) if len(run) == 1}
    return frozenset(chosen) if chosen and chosen <= set(letters) else None
