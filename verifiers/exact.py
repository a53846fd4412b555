"""Answers compared as text: by equality, exact or normalized, or by a pattern. Owns where text answers
stand."""

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from verifiers.extract import Fallback, Think, extract_answer, final_part, marked_answer
from verifiers.golds import refuse_missing
from verifiers.verdict import Verdict, correct, no_answer, wrong

Source = Literal["response", "final_part", "boxed"]


@dataclass(frozen=True, kw_only=True)
class TextAnswer:
    """Options that say where a verifier of text takes the answer from: the whole response, or an extracted
    part.

    With the source "final_part", a fallback that finds an answer in that part gives it instead
    of the whole part."""

    source: Source = "final_part"
    fallbacks: tuple[Fallback, ...] = ()
    think: Think = "optional"


def answer_text(response: str, where: TextAnswer) -> tuple[str | None, str, str]:
    """(answer, method, reason): the answer is None when there is none, and then the reason says why."""
    if where.source == "response":
        return response, "response", ""
    if where.source == "final_part":
        text, reason = final_part(response, think=where.think)
        if text is None:
            return None, "", reason
        marked = marked_answer(text, where.fallbacks)
        return (*marked, "") if marked is not None else (text, "final_part", "")
    found = extract_answer(response, fallbacks=where.fallbacks, think=where.think)
    return found.answer, found.method, found.reason


def response_of(answer: str, where: TextAnswer) -> str:
    """A response from which `answer_text` takes `answer`."""
    text = f"\\boxed{{{answer}}}" if where.source == "boxed" else answer
    return f"</think>{text}" if where.think == "required" else text


@dataclass(frozen=True, kw_only=True)
class ExactVerifier(TextAnswer):
    """The answer, character for character; by default without case, outer space and repeated space."""

    ignore_case: bool = True
    ignore_space: bool = True
    ignore_punctuation: bool = False

    def parse_reference(self, raw: object) -> frozenset[str]:
        """The accepted strings: one, or a list of them."""
        refuse_missing(raw)
        golds = list(raw) if isinstance(raw, (list, tuple)) else [raw]
        if not golds or not all(isinstance(gold, (str, int, float)) for gold in golds):
            raise ValueError(f"The gold answer is {raw!r}, expected a string or a list of strings.")
        normal = frozenset(self._normal(str(gold)) for gold in golds)
        if "" in normal:
            raise ValueError(f"The gold answer is {raw!r}, expected text: it is empty (after normalization).")
        return normal

    def verify(self, response: str, reference: frozenset[str]) -> Verdict:
        answer, method, reason = answer_text(response, self)
        if answer is None:
            return no_answer(reason)
        normal = self._normal(answer)
        if not normal:
            return no_answer("nothing is written where the answer should stand")
        shown = answer.strip()[:500]
        if normal in reference:
            return correct(extracted=shown, detail="the same text", method=method)
        return wrong(extracted=shown, detail="not the same text", method=method)

    def verify_fast(self, response: str, reference: frozenset[str]) -> Verdict | None:
        return self.verify(response, reference) if len(response) < 4000 else None

    def response_with(self, answer: str) -> str:
        return response_of(answer, self)

    def _normal(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text)
        if self.ignore_case:
            text = text.casefold()
        if self.ignore_punctuation:
            text = "".join(" " if unicodedata.category(mark)[0] == "P" else mark for mark in text)
        if self.ignore_space:
            text = " ".join(text.split())
        return text


@dataclass(frozen=True, kw_only=True)
class RegexVerifier(TextAnswer):
    """The gold is a regular expression (Python's syntax). A pattern that backtracks without end is cut off by
    the pool."""

    match: Literal["full", "search"] = "full"
    ignore_case: bool = False
    strip: bool = True

    def parse_reference(self, raw: object) -> str:
        if not isinstance(raw, str) or not raw:
            raise ValueError(f"The gold answer is {raw!r}, expected a regular expression.")
        try:
            self._compiled(raw)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"The gold answer {raw!r} is not a regular expression: {error}.") from error
        return raw

    def verify(self, response: str, reference: str) -> Verdict:
        answer, method, reason = answer_text(response, self)
        if answer is None:
            return no_answer(reason)
        if self.strip:
            answer = answer.strip()
        pattern = self._compiled(reference)
        found = pattern.fullmatch(answer) if self.match == "full" else pattern.search(answer)
        if found is None:
            return wrong(extracted=answer[:500], detail="the pattern does not match", method=method)
        return correct(extracted=found.group()[:500], detail="the pattern matches", method=method)

    def _compiled(self, pattern: str) -> re.Pattern[str]:
        return re.compile(pattern, re.IGNORECASE if self.ignore_case else 0)
