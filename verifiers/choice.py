"""Multiple choice: which letters the response chose."""

import re

from verifiers.exact import Source, TextAnswer, answer_text
from verifiers.extract import Fallback, Think
from verifiers.hedges import offers_another
from verifiers.math.words import clean_words
from verifiers.verdict import Verdict, correct, no_answer, wrong

_STYLE = re.compile(
    r"\\(?:text(?:bf|rm|it|sf|tt)?|math(?:rm|bf|sf|it)|mbox|boxed|fbox|bf|rm)(?![A-Za-z])\s*"
    r"|[{}$*~`]|\\[ ,;!]"
)
_LETTER = re.compile(
    r"(?:(?:the\s+)?(?:correct\s+|final\s+)?(?:option|choice|answer)s?\s*(?:is|are|:)?\s*)?(.*)", re.I | re.S
)
_LIST = re.compile(r"\(?\s*[A-Za-z]\s*\)?(?:\s*(?:,|;|&|/|and|,\s*and)?\s*\(?\s*[A-Za-z]\s*\)?)*", re.I)
_ONE_AND_TEXT = re.compile(r"(?:\(\s*([A-Za-z])\s*\)|([A-Za-z])\s*[.):])\s*(.*)", re.S)


class ChoiceVerifier:
    """The gold is a letter, or several ("A,C"); the response must choose exactly those."""

    def __init__(
        self,
        *,
        letters: str = "ABCDEFGHIJ",
        source: Source = "boxed",
        fallbacks: tuple[Fallback, ...] = ("final_answer",),
        think: Think = "optional",
    ) -> None:
        self._letters = letters.upper()
        if not self._letters.isalpha() or len(set(self._letters)) != len(self._letters):
            raise ValueError(
                f"Option 'letters' of verifier 'choice' is {letters!r}, expected distinct letters."
            )
        self._where = TextAnswer(source, fallbacks, think)

    def parse_reference(self, raw: object) -> frozenset[str]:
        text = ",".join(map(str, raw)) if isinstance(raw, (list, tuple)) else raw
        chosen = chosen_letters(text, self._letters) if isinstance(text, str) else None
        if not chosen:
            raise ValueError(
                f"The gold answer is {raw!r}, expected one or more of the letters {self._letters} "
                "(another set: option 'letters')."
            )
        return chosen

    def verify(self, response: str, reference: frozenset[str]) -> Verdict:
        answer, method, reason = answer_text(response, self._where)
        if answer is None:
            return no_answer(reason)
        shown = answer.strip()[:500]
        chosen = chosen_letters(answer[:4000], self._letters)
        if chosen is None:
            return wrong(extracted=shown, detail="is not a choice of letters", method=method)
        if chosen == reference:
            return correct(extracted=shown, detail="the same choice", method=method)
        return wrong(extracted=shown, detail=f"chose {', '.join(sorted(chosen))}", method=method)

    def verify_fast(self, response: str, reference: frozenset[str]) -> Verdict | None:
        return self.verify(response, reference) if len(response) < 2000 else None


def chosen_letters(text: str, letters: str) -> frozenset[str] | None:
    """The letters that `text` chooses: "B", "(B)", "\\text{B}", "B. because ...", "A and C"; None
    when it is unclear."""
    plain = " ".join(_STYLE.sub(" ", text).split()).strip(" .,;:")
    match = _LETTER.fullmatch(plain)
    plain = match.group(1) if match else plain
    if len(plain) < 60 and _LIST.fullmatch(plain):
        marks = re.sub(r"\band\b", " ", plain, flags=re.I)
        runs = re.findall(r"[A-Za-z]+", marks)
        # "AC" chooses two, "ac" and "because" are words.
        if all(len(run) == 1 for run in runs) or plain.isupper():
            chosen = "".join(runs).upper()
            return frozenset(chosen) if chosen and set(chosen) <= set(letters) else None
    one = _ONE_AND_TEXT.fullmatch(plain)
    if one is None:
        return None
    letter = (one.group(1) or one.group(2)).upper()
    rest = clean_words(one.group(3))
    # "(A) or (B)", "A) B)": more than one candidate.
    if (
        letter not in letters
        or re.match(r"(?:or|and)\b", rest)
        or re.search(r"\([a-z]\)|(?:^|\s)[a-z]\)", rest)
        or offers_another(letter, one.group(3))
    ):
        return None
    return frozenset(letter)
