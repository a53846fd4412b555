"""A data set against its verifier, before training: every gold must grade CORRECT as its own answer, its
mutants not.

Works on rows alone, wherever they come from. The tests of a code row must let its own solution pass, if the
row has one, and neither an empty program nor one whose functions all return the same. A row whose gold is no
answer otherwise (a pattern, a schema), or whose verifier judges whole groups, is counted as not
self-answering: nothing can be said about it here beyond that its gold parses."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from verifiers.choice import ChoiceReference
from verifiers.code.tests import CodeReference
from verifiers.code.verifier import stubs
from verifiers.gym import GymReference, own_response
from verifiers.math.answer import plain_number
from verifiers.math.verifier import MathReference
from verifiers.pool import VerifierPool
from verifiers.task import Task, response_task
from verifiers.verdict import Outcome, Verdict

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PAIR = re.compile(r"\(([^(),\[\]]+),([^(),\[\]]+)\)")


def mutants(gold: str, *, other: str | None = None) -> Iterator[tuple[str, str]]:
    """(kind, text) of wrong answers: a changed digit, the sign, swapped digits or places, another row's gold.

    Kinds that the text does not allow, or that would not change its value, are left out."""
    yield from _changed_digit(gold)
    yield from _changed_sign(gold)
    yield from _swapped(gold)
    if other is not None and _differ(gold, other):
        yield "another row's gold", other


def _differ(one: str, other: str) -> bool:
    first, second = plain_number(one.strip()), plain_number(other.strip())
    if first is not None and second is not None:
        return first != second
    return "".join(one.split()).casefold() != "".join(other.split()).casefold()


def _changed_digit(gold: str) -> Iterator[tuple[str, str]]:
    numbers = list(_NUMBER.finditer(gold))
    if not numbers:
        return
    # The last number that is not an exponent or a subscript: a digit there always changes the value.
    number = next(
        (match for match in reversed(numbers) if gold[: match.start()].rstrip("{")[-1:] not in ("^", "_")),
        None,
    )
    if number is None:
        return
    at = number.end() - 1
    digit = "1" if gold[at] == "9" else str(int(gold[at]) + 1)
    changed = gold[:at] + digit + gold[at + 1 :]
    if "\\overline" not in gold:
        yield "changed digit", changed


def _changed_sign(gold: str) -> Iterator[tuple[str, str]]:
    value = plain_number(gold.strip())
    if value:
        yield "changed sign", gold.strip()[1:] if gold.strip()[0] == "-" else f"-{gold.strip()}"
    elif value is None and re.match(r"\s*\\d?frac\{\d+\}\{\d+\}\s*$", gold):
        yield "changed sign", f"-{gold.strip()}"


def _swapped(gold: str) -> Iterator[tuple[str, str]]:
    pair = _PAIR.search(gold)
    if pair is not None and pair.group(1).strip() != pair.group(2).strip() and pair.group() == gold.strip():
        yield "swapped places", f"({pair.group(2)},{pair.group(1)})"
    number = plain_number(gold.strip())
    digits = gold.strip().lstrip("-")
    if number is not None and digits.isdecimal():
        for at in range(len(digits) - 1):
            if digits[at] != digits[at + 1]:
                swapped = digits[:at] + digits[at + 1] + digits[at] + digits[at + 2 :]
                yield "swapped digits", ("-" if number < 0 else "") + swapped
                return


_NO_SELF_ANSWER = {"regex", "format", "length", "json_schema", "judge", "reward_model"}
_ALTERNATIVES = {"math", "exact"}
"""Verifiers for which a list of golds says that each of them is an answer."""
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class GoldRow:
    where: str
    """File and line."""
    gold: Any
    verifier_name: str
    options: Mapping[str, object]
    task: Task = Task()
    """For a verifier that takes it."""


@dataclass(slots=True)
class DataReport:
    num_rows: int = 0
    num_checked: int = 0
    """Rows whose gold, or whose solution, was graded as its own answer."""
    unreadable: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Golds that do not grade CORRECT as their own answer: false negatives."""
    accepted_mutants: list[str] = field(default_factory=list)
    """Wrong answers that grade CORRECT: false positives."""
    num_mutants: Counter[str] = field(default_factory=Counter)
    num_accepted: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    """Golds of letters that may be a word or a product; no fault of the row, so they leave it clean."""

    @property
    def false_negative_rate(self) -> float:
        return len(self.refused) / self.num_checked if self.num_checked else 0.0

    @property
    def false_positive_rate(self) -> float:
        total = sum(self.num_mutants.values())
        return sum(self.num_accepted.values()) / total if total else 0.0

    @property
    def is_clean(self) -> bool:
        return not (self.unreadable or self.refused or self.accepted_mutants or self.faults)

    def note_mutant(self, kind: str, complaint: str, outcome: Outcome) -> None:
        """Counts a wrong answer, unless the verifier failed on it; `complaint` is kept where it passes."""
        self.num_mutants[kind] += outcome is not Outcome.FAULT
        if outcome is Outcome.CORRECT:
            self.num_accepted[kind] += 1
            self.accepted_mutants.append(complaint)


async def check_rows(
    rows: Iterable[GoldRow],
    pool: VerifierPool,
    *,
    folder: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DataReport:
    """The report on all rows, complaints in the order of the rows. `progress` hears rows done, and in all."""
    report, rows = DataReport(), list(rows)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        chunk = range(start, min(start + _ROWS_AT_ONCE, len(rows)))
        await asyncio.gather(*(_RowCheck(rows, at, pool, folder, report).run() for at in chunk))
        progress(chunk.stop, len(rows))
    for complaints in (
        report.unreadable,
        report.refused,
        report.accepted_mutants,
        report.faults,
        report.guesses,
    ):
        complaints.sort(key=_place)
    return report


def _place(complaint: str) -> tuple[str, int, str]:
    found = re.match(r"(.*?)(?::|, row )(\d+)", complaint)
    return (found[1], int(found[2]), complaint) if found else (complaint, 0, complaint)


@dataclass(frozen=True, slots=True)
class _Exam:
    """Responses to a row of which it is known beforehand whether they are right."""

    right: list[tuple[str, str]]
    """(response, the beginning of the complaint about its verdict)."""
    wrong: list[tuple[str, str, str]]
    """(kind, response, the complaint where it passes)."""


def _exam_of(reference: object) -> _Exam | None:
    """None for a reference whose own answers are texts, see `_own_answers`."""
    match reference:
        case CodeReference():
            fence = "`" * 8
            solution = f"{fence}{reference.lang}\n{reference.solution}\n{fence}"
            return _Exam(
                [] if reference.solution is None else [(solution, "its own solution is graded")],
                [
                    (kind, response, f"a program that does nothing ({kind}) passes its tests")
                    for kind, response in stubs(reference)
                ],
            )
        case GymReference():
            own = own_response(reference)
            senseless = {"nothing": "<answer></answer>", "nonsense": "<answer>qwxz vbnk</answer>"}
            return _Exam(
                [] if own is None else [(own, "its own answer is")],
                [(kind, response, f"{kind} passes") for kind, response in senseless.items()],
            )
        case ChoiceReference() if reference.options:
            return _choice_exam(reference)
    return None


def _choice_exam(reference: ChoiceReference) -> _Exam:
    """Its letters must be right, alone and with the option's own text; other letters and texts must not."""
    own = ", ".join(sorted(reference.letters))
    right = [own]
    wrong = [("another letter", letter) for letter, _ in reference.options if letter != own]
    if len(reference.letters) == 1:
        right.append(f"{own}) {reference.text_of(own)}")
        others = (text for letter, text in reference.options if letter != own)
        wrong += [("another option's text", f"{own}) {text}") for text in others]
    return _Exam(
        [(f"\\boxed{{{text}}}", f"its own answer {text!r} is") for text in right],
        [
            (kind, f"\\boxed{{{text}}}", f"{text!r} ({kind}) passes for the gold {own!r}")
            for kind, text in wrong
        ],
    )


def _own_answers(row: GoldRow) -> list[str]:
    """The texts that must each grade CORRECT as an answer to the row; empty where that cannot be said."""
    if row.verifier_name in _NO_SELF_ANSWER:
        return []
    golds = [row.gold]
    if isinstance(row.gold, (list, tuple)):
        if row.verifier_name == "choice":
            # All letters together are the answer.
            return [",".join(map(str, row.gold))]
        if row.verifier_name not in _ALTERNATIVES:
            return []
        golds = list(row.gold)
    # A gold that is a whole solution answers for itself: with its own box, or with what stands
    # after its mark.
    return [str(gold).rpartition("####")[2].strip() for gold in golds if isinstance(gold, (str, int, float))]


def _readings(reference: object) -> list[MathReference]:
    """The mathematical gold, or those among the parts of a weighted one."""
    if isinstance(reference, tuple):
        return [reading for part in reference for reading in _readings(part)]
    return [reference] if isinstance(reference, MathReference) else []


@dataclass(frozen=True, slots=True)
class _RowCheck:
    """The check of the row at `at`, whose findings go to the report."""

    rows: Sequence[GoldRow]
    at: int
    pool: VerifierPool
    folder: Path | None
    report: DataReport

    @property
    def row(self) -> GoldRow:
        return self.rows[self.at]

    async def run(self) -> None:
        row, report = self.row, self.report
        report.num_rows += 1
        try:
            reference = self._parsed(row.gold)
        except ValueError as error:
            report.unreadable.append(f"{row.where}: {error}")
            return
        readings = _readings(reference)
        if any(reading.is_guess for reading in readings):
            report.guesses.append(
                f"{row.where}: {row.gold!r} counts as text and as a product of its letters; "
                "option letters: word or product decides"
            )
        report.guesses += [
            f"{row.where}: {row.gold!r} holds {name}, which is read as a function and never as a product"
            for reading in readings
            for name in reading.applications
        ]
        if self.pool.is_group_wise(row.verifier_name, row.options, folder=self.folder):
            # What an answer is worth depends on the answers beside it.
            return
        if (exam := _exam_of(reference)) is not None:
            await self._hold(exam, reference)
            return
        golds = _own_answers(row)
        report.num_checked += bool(golds)
        for gold in golds:
            await self._check_answer(gold, reference)

    async def _hold(self, exam: _Exam, reference: Any) -> None:
        where, report = self.row.where, self.report
        report.num_checked += bool(exam.right)
        for response, complaint in exam.right:
            verdict = await self._grade(response, reference)
            if verdict.outcome not in (Outcome.CORRECT, Outcome.FAULT):
                report.refused.append(f"{where}: {complaint} {verdict.outcome.value}: {verdict.detail[:300]}")
        for kind, response, complaint in exam.wrong:
            outcome = (await self._grade(response, reference)).outcome
            report.note_mutant(kind, f"{where}: {complaint}", outcome)

    async def _check_answer(self, gold: str, reference: Any) -> None:
        """One answer to the row, and wrong ones made from it."""
        where = self.row.where
        templates = ("%s",) if "\\boxed" in gold else ("\\boxed{%s}", "%s")
        graded = [(await self._grade(template % gold, reference)).outcome for template in templates]
        if Outcome.CORRECT not in graded:
            self.report.refused.append(
                f"{where}: the gold {gold[:200]!r} is graded {graded[0].value} as its own answer"
            )
            return
        template = templates[graded.index(Outcome.CORRECT)]
        if template == "%s" and len(gold) > 200:
            return
        for kind, text in mutants(gold, other=self._other_gold()):
            outcome = (await self._grade(template % text, reference)).outcome
            if outcome is Outcome.CORRECT and await self._is_right(kind, text, template, gold):
                continue
            complaint = f"{where}: {text[:200]!r} ({kind}) passes for the gold {gold[:200]!r}"
            self.report.note_mutant(kind, complaint, outcome)

    async def _is_right(self, kind: str, text: str, template: str, gold: str) -> bool:
        """Whether a mutant that passes is a right answer after all."""
        if kind == "another row's gold" and await self._accepts(text, template % gold):
            # Each passes for the other: the two rows have the same answer.
            return True
        if isinstance(self.row.gold, (str, int, float)):
            return False
        for other in _own_answers(self.row):
            if other != gold and await self._accepts([other], template % text):
                return True
        return False

    async def _accepts(self, gold: object, response: str) -> bool:
        try:
            reference = self._parsed(gold)
        except ValueError:
            return False
        return (await self._verdict(response, reference)).outcome is Outcome.CORRECT

    async def _grade(self, response: str, reference: Any) -> Verdict:
        """The verdict on a response to the row; a fault is in the report then."""
        verdict = await self._verdict(response, reference)
        if verdict.outcome is Outcome.FAULT:
            self.report.faults.append(f"{self.row.where}: {verdict.detail}")
        return verdict

    async def _verdict(self, response: str, reference: Any) -> Verdict:
        row, made = self.row, partial(response_task, response, self.row.task)
        return await self.pool.verify(
            row.verifier_name, row.options, response, reference, folder=self.folder, task=made
        )

    def _parsed(self, gold: object) -> Any:
        return self.pool.parse_reference(self.row.verifier_name, self.row.options, gold, folder=self.folder)

    def _other_gold(self) -> str | None:
        """The next gold of the same verifier that is written differently."""
        for step in range(1, min(len(self.rows), 20)):
            other = self.rows[(self.at + step) % len(self.rows)]
            is_same_kind = other.verifier_name == self.row.verifier_name
            if not is_same_kind or not isinstance(other.gold, (str, int, float)):
                continue
            if str(other.gold).strip() != str(self.row.gold).strip():
                return str(other.gold)
        return None
