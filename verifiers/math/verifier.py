"""The verifier of mathematical answers: extraction, the exact fast path, then both sides parsed and compared.

Every step but one is bounded by budgets of its own; the pool's time and memory limits stand behind that. The
one is sympy, asked last, for what nothing else decides: only the size of its question is bounded here.
Verdicts depend on the gold and the extracted answer only."""

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from verifiers.extract import Extraction, Fallback, Think, extract_answer
from verifiers.golds import refuse_missing
from verifiers.letter_choice import read_choice
from verifiers.math.answer import Answer, plain_number, read_answer, strip_wrapping
from verifiers.math.comparison import same_answer
from verifiers.math.letters import Letters, LettersAre
from verifiers.math.literals import read_number
from verifiers.math.marks import is_full_hour
from verifiers.math.nodes import FunctionCall, Listing, Node, Number, Product, Ratio, Relation, Text
from verifiers.math.operations import undone_operation
from verifiers.math.scalars import same_number
from verifiers.math.shorthand import expand
from verifiers.math.solutions import pair_off
from verifiers.math.texts import formula_of, same_time
from verifiers.math.tokens import Token, split_label
from verifiers.math.trees import walk, with_marks_of
from verifiers.math.units import in_degrees, is_other_kind, ratio_of_units
from verifiers.math.words import OWN_FUNCTIONS, unstyled
from verifiers.verdict import Verdict, correct, no_answer, wrong

_CHOICE_GOLD = re.compile(r"(?:\\text(?:bf)?\{)?\(?([A-J])\)?\}?[.:]?")
_CHOICE_AND_VALUE = re.compile(r"\\text(?:bf)?\s*\{\s*\(([A-J])\)\s*\}(?:\\ |~|\s|:)*(\S.*)", re.DOTALL)
_LETTERS = "ABCDEFGHIJ"
_TEXT_ONLY = re.compile(r"[{\s]*[^\W\d_](?:[^\W\d_]|[\s'\-,.{}])*")
_TEXT_COMMAND = re.compile(r"\\(?:text(?:rm|bf|it)?|mathrm|mathbf|mbox)\b")
_MARKED = re.compile(r"\\(?:vec|overrightarrow|(?:wide)?hat)(?![A-Za-z])")
_CLOCK = {(("am", 1),), (("pm", 1),)}
_CACHE_SIZE = 8192

_Finding = tuple[bool, str]
"""(whether the answer is correct, why)"""


@dataclass(frozen=True, slots=True)
class MathReference:
    """A gold answer, read once: each of `answers` is acceptable on its own."""

    answers: tuple[Answer, ...]
    choice: str | None
    """The letter, when the gold is a multiple choice letter."""
    is_option_known: bool = False
    """The gold has the text of its option, too, which `answers` hold: (C) 42."""

    @property
    def is_guess(self) -> bool:
        """Whether a gold of letters alone may be a word or a product: each is accepted."""
        return any(answer.letters is LettersAre.GUESS for answer in self.answers)

    @property
    def applications(self) -> tuple[str, ...]:
        """Calls in the golds that could be products, d(n), but for those that name what the gold tells."""
        readings = [reading for answer in self.answers for reading in answer.readings]
        values = [reading.sides[-1] if isinstance(reading, Relation) else reading for reading in readings]
        calls = [item for value in values for item in walk(value) if isinstance(item, FunctionCall)]
        return tuple(
            f"{call.name}(...)" for call in calls if not call.known and call.name[0] not in OWN_FUNCTIONS
        )

    @property
    def key(self) -> str:
        """All that a verdict depends on: (C) 42 and 42 are different golds."""
        return "\x00".join((self.choice or "", *(answer.text for answer in self.answers)))


@dataclass(frozen=True, kw_only=True, eq=False)
class MathVerifier:
    r"""Grades the last \boxed{} (or a configured fallback) of a response against a gold answer.

    `letters`: how a gold of letters alone is read, see `verifiers.math.letters`: "word" compares it as text,
    "product" as a product of its letters, "auto" as what it looks like.

    `operations`: "as_gold" counts an answer that leaves an operation to be computed (17 \cdot 23, 5!,
    \gcd(32, 48)) only where the gold has one of its kind, see `verifiers.math.operations`; "any" counts
    every answer of the same value."""

    fallbacks: tuple[Fallback, ...] = ()
    think: Think = "optional"
    operations: Literal["as_gold", "any"] = "as_gold"
    letters: Letters = "auto"
    _cache: dict[Hashable, Verdict] = field(default_factory=dict, init=False, repr=False)

    def parse_reference(self, raw: object) -> MathReference:
        """The gold answer read as mathematics; a list means that each of its items is acceptable."""
        refuse_missing(raw)
        golds = list(raw) if isinstance(raw, (list, tuple)) else [raw]
        if not golds:
            raise ValueError("The gold answer is an empty list, expected at least one acceptable answer.")
        both = _CHOICE_AND_VALUE.fullmatch(str(golds[0]).strip()) if len(golds) == 1 else None
        if both is not None:
            return MathReference((self._read_gold(both.group(2)),), both.group(1), is_option_known=True)
        answers = tuple(self._read_gold(gold) for gold in golds)
        match = _CHOICE_GOLD.fullmatch(answers[0].text.strip()) if len(answers) == 1 else None
        return MathReference(answers, match.group(1) if match else None)

    def _read_gold(self, gold: object) -> Answer:
        if isinstance(gold, bool) or not isinstance(gold, (str, int, float, Fraction)):
            raise ValueError(
                f"The gold answer is {gold!r}, expected a string or a number (or a list of them)."
            )
        text = str(gold)
        if "####" in text:
            text = text.rpartition("####")[2]
        answer = read_answer(text, letters=self.letters, is_gold=True)
        if not answer.text:
            raise ValueError(f"The gold answer is {gold!r}, expected an answer: it is empty.")
        if not answer.readings and (labelled := split_label(answer.text)) is not None:
            # 3 (more apples): a gold's label that names no unit is not compared.
            answer = read_answer(labelled[0], is_gold=True)
        if not answer.readings:
            if (
                answer.is_chemical
                or _TEXT_ONLY.fullmatch(answer.words)
                and _TEXT_ONLY.fullmatch(_TEXT_COMMAND.sub("", answer.text).casefold())
            ):
                return Answer(answer.text, None, answer.words, (Text(answer.words),), None)
            raise ValueError(
                f"The gold answer {text[:200]!r} cannot be read as mathematics: {answer.problem}. "
                "Correct the row, drop it, or name another verifier for it."
            )
        return answer

    def verify(self, response: str, reference: MathReference) -> Verdict:
        extraction = self._extract(response)
        if extraction.answer is None:
            return no_answer(extraction.reason)
        key = (reference.key, extraction)
        verdict = self._cache.get(key)
        if verdict is None:
            found = self._settle(extraction, reference) or self._compare(extraction, reference)
            verdict = _verdict(extraction, found)
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.pop(next(iter(self._cache)), None)
            self._cache[key] = verdict
        return verdict

    def verify_fast(self, response: str, reference: MathReference) -> Verdict | None:
        """Settles identical text and plain numbers; all else is for `verify`."""
        extraction = self._extract(response)
        if extraction.answer is None:
            return no_answer(extraction.reason)
        verdict = self._cache.get((reference.key, extraction))
        if verdict is None and (found := self._settle(extraction, reference)) is not None:
            verdict = _verdict(extraction, found)
        return verdict

    def cache_key(self, response: str, reference: MathReference) -> Hashable | None:
        extraction = self._extract(response)
        return None if extraction.answer is None else (reference.key, extraction)

    def response_with(self, answer: str) -> str:
        return f"{'</think>' if self.think == 'required' else ''}\\boxed{{{answer}}}"

    def _extract(self, response: str) -> Extraction:
        return extract_answer(response, fallbacks=self.fallbacks, think=self.think)

    @staticmethod
    def _settle(extraction: Extraction, reference: MathReference) -> _Finding | None:
        """The verdict that the text alone or exact numbers give, or None."""
        answer = extraction.answer
        assert answer is not None
        text = strip_wrapping(answer)
        if not extraction.candidates and any(text == gold.text for gold in reference.answers):
            return True, "the same text"
        number = plain_number(text)
        if number is None or any(gold.number is None or gold.unit for gold in reference.answers):
            return None
        if any(_same_plain(gold, text, number) for gold in reference.answers):
            return True, "the same number"
        return False, f"{text[:80]} is not {_shown(reference)}"

    def _compare(self, extraction: Extraction, reference: MathReference) -> _Finding:
        found = self._compare_one(extraction, reference)
        if not found[0] and extraction.candidates:
            # \boxed{\frac{84}{2}} \boxed{42}: several boxes that all hold the answer.
            boxes = [Extraction(box, extraction.method) for box in extraction.candidates]
            graded = (self._settle(box, reference) or self._compare_one(box, reference) for box in boxes)
            if all(is_correct for is_correct, _ in graded):
                return True, "each box is equal to the gold"
        if not found[0] and extraction.parts:
            given = [read_answer(part) for part in extraction.parts]
            if any(self._fills(gold, given) for gold in reference.answers):
                return True, "each box is a part of the gold, in order"
        return found

    def _fills(self, gold: Answer, given: list[Answer]) -> bool:
        """Whether the answers are the items of a gold that is a list, one each and in order; in any order
        where all are values of one name, x = 2 and x = 3."""
        items = _items_of(gold)
        if len(items) != len(given):
            return False

        def same(wanted: Answer, part: Answer) -> bool:
            return _match(wanted, part, any_operation=self.operations == "any") == ""

        return all(map(same, items, given)) or (_have_one_name(given) and pair_off(items, given, same))

    def _compare_one(self, extraction: Extraction, reference: MathReference) -> _Finding:
        answer = extraction.answer
        assert answer is not None
        if reference.choice is not None and not extraction.candidates:
            found = self._compare_choice(answer, reference, reference.choice)
            if found is not None:
                return found
        return self._compare_value(answer, reference)

    def _compare_choice(self, answer: str, reference: MathReference, gold: str) -> _Finding | None:
        """None when the answer chooses no letter: it may be the value."""
        choice = read_choice(answer, _LETTERS)
        if choice is None:
            return None
        if choice.letters != {gold}:
            return False, f"chose {', '.join(sorted(choice.letters))}, not {gold}"
        if choice.text and reference.is_option_known:
            return self._compare_value(choice.text, reference)
        if not choice.may_stand(_LETTERS):
            return False, f"the text after {gold} is not that of an option"
        return True, "the same choice"

    def _compare_value(self, text: str, reference: MathReference) -> _Finding:
        response = read_answer(text, letters=self.letters)
        undone: str | None = None
        for gold in reference.answers:
            found = _match(gold, response, any_operation=self.operations == "any")
            if found == "":
                return True, "equal to the gold"
            undone = undone or found
        if undone is not None:
            return False, (
                f"leaves an operation undone ({undone}) that {_shown(reference)} does not have "
                "(option operations: any)"
            )
        if not response.readings:
            return False, f"cannot be read as mathematics: {response.problem}"
        return False, f"is not equal to {_shown(reference)}"


def _verdict(extraction: Extraction, found: _Finding) -> Verdict:
    is_correct, why = found
    say = correct if is_correct else wrong
    return say(extracted=extraction.answer, detail=why, method=extraction.method)


def _same_plain(gold: Answer, text: str, number: Fraction) -> bool:
    if gold.number == number:
        return True
    if "." not in text and "." not in gold.text:
        return False
    return same_number(_literal(gold.text, gold.number), _literal(text, number))


def _literal(text: str, value: Fraction | None) -> Number:
    """The number with the digits it was written with, which decide what it may be a rounding of."""
    assert value is not None
    if "." not in text:
        return Number(value)
    literal = read_number(Token("number", text.lstrip("+-")))
    return Number(value, literal.places, literal.significant)


def _items_of(gold: Answer) -> list[Answer]:
    """Each item of a bare list as an answer of its own; none for a gold of another shape."""
    reading = expand(gold.readings[0]) if gold.readings else None
    items = reading.items if isinstance(reading, Listing) else ()
    return [Answer(gold.text, None, "", (item,), gold.unit) for item in items]


def _have_one_name(given: list[Answer]) -> bool:
    names = {
        reading.sides[0] if isinstance(reading, Relation) else None
        for answer in given
        for reading in answer.readings
    }
    return len(names) == 1 and None not in names


def _match(gold: Answer, response: Answer, *, any_operation: bool) -> str | None:
    """ "" when the response is the gold, None when it is not, and the kind of operation when it has the value
    but leaves that operation undone."""
    if gold.is_chemical and (formula := formula_of(response.text)) is not None:
        return "" if formula == formula_of(gold.text) else None
    if (
        gold.words
        and gold.words == response.words
        and all(isinstance(reading, Text) for reading in gold.readings)
    ):
        return ""
    if gold.letters is not None and unstyled(response.text) == gold.text:
        return ""
    if (is_same := same_time(gold.words, response.words)) is not None:
        return "" if is_same else None
    ratio = ratio_of_units(gold.unit, response.unit)
    if ratio is None:
        return None
    undone: str | None = None
    units = {unit.powers for unit in (gold.unit, response.unit) if unit is not None}
    for wanted in gold.readings:
        for given in response.readings:
            if is_other_kind(given, gold.unit) or is_other_kind(wanted, response.unit):
                # 60 mph is not 60°, 5 cm is not 5%.
                continue
            if not _CLOCK.isdisjoint(units) and not _are_times(wanted, given):
                continue
            if _MARKED.search(gold.text) or _MARKED.search(response.text):
                given = with_marks_of(wanted, given)
            scaled = given if ratio == 1 else Product((Number(ratio), given))
            if same_answer(in_degrees(wanted, gold.unit, given), in_degrees(scaled, response.unit, wanted)):
                undone = None if any_operation else undone_operation(wanted, given, gold.text, response.text)
                if undone is None:
                    return ""
    return undone


def _are_times(*sides: Node) -> bool:
    """Whether both may be times of day: 5:30 pm is not 5/30, 5:00 pm is 5."""
    has_minutes = any(isinstance(side, Ratio) and not is_full_hour(side) for side in sides)
    return all(isinstance(side, Ratio) or (isinstance(side, Number) and not has_minutes) for side in sides)


def _shown(reference: MathReference) -> str:
    return " or ".join(answer.text[:80] for answer in reference.answers[:3])
