"""A data set against its verifier, before training: every gold must grade CORRECT as its own answer, its
mutants not.

Works on rows alone, wherever they come from. The tests of a code row must let its own solution pass, if the
row has one, and neither an empty program nor one whose functions all return the same. A row whose gold is no
answer otherwise (a pattern, a schema), or whose verifier judges whole groups, is counted as not
self-answering: nothing can be said about it here beyond that its gold parses."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
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
    report = DataReport()
    rows = list(rows)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        chunk = range(start, min(start + _ROWS_AT_ONCE, len(rows)))
        await asyncio.gather(*(_check_row(rows, at, pool, folder, report) for at in chunk))
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


async def _check_row(
    rows: Sequence[GoldRow], at: int, pool: VerifierPool, folder: Path | None, report: DataReport
) -> None:
    row = rows[at]
    report.num_rows += 1
    try:
        reference = pool.parse_reference(row.verifier_name, row.options, row.gold, folder=folder)
    except ValueError as error:
        report.unreadable.append(f"{row.where}: {error}")
        return
    if _is_guess(reference):
        report.guesses.append(
            f"{row.where}: {row.gold!r} counts as text and as a product of its letters; "
            "option letters: word or product decides"
        )

    for name in _applications(reference):
        report.guesses.append(
            f"{row.where}: {row.gold!r} holds {name}, which is read as a function and never as a product"
        )

    async def grade(response: str) -> Verdict:
        verdict = await _verdict(pool, row, response, reference, folder)
        if verdict.outcome is Outcome.FAULT:
            report.faults.append(f"{row.where}: {verdict.detail}")
        return verdict

    if pool.is_group_wise(row.verifier_name, row.options, folder=folder):
        # What an answer is worth depends on the answers beside it.
        return
    if (exam := _exam_of(reference)) is not None:
        await _hold(exam, row, grade, report)
        return
    golds = _own_answers(row)
    report.num_checked += bool(golds)
    for gold in golds:
        await _check_answer(rows, at, gold, grade, pool, folder, report)


Grade = Callable[[str], Awaitable[Verdict]]
"""Grades a response to the row; a fault is in the report then."""


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
            return _code_exam(reference)
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


def _code_exam(reference: CodeReference) -> _Exam:
    fence = "`" * 8
    solution = f"{fence}{reference.lang}\n{reference.solution}\n{fence}"
    return _Exam(
        [] if reference.solution is None else [(solution, "its own solution is graded")],
        [
            (kind, response, f"a program that does nothing ({kind}) passes its tests")
            for kind, response in stubs(reference)
        ],
    )


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


async def _hold(exam: _Exam, row: GoldRow, grade: Grade, report: DataReport) -> None:
    report.num_checked += bool(exam.right)
    for response, complaint in exam.right:
        verdict = await grade(response)
        if verdict.outcome not in (Outcome.CORRECT, Outcome.FAULT):
            report.refused.append(f"{row.where}: {complaint} {verdict.outcome.value}: {verdict.detail[:300]}")
    for kind, response, complaint in exam.wrong:
        report.note_mutant(kind, f"{row.where}: {complaint}", (await grade(response)).outcome)


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


async def _check_answer(
    rows: Sequence[GoldRow],
    at: int,
    gold: str,
    grade: Grade,
    pool: VerifierPool,
    folder: Path | None,
    report: DataReport,
) -> None:
    """One answer to a row, and wrong ones made from it."""
    row = rows[at]
    templates = ("%s",) if "\\boxed" in gold else ("\\boxed{%s}", "%s")
    graded = [(await grade(template % gold)).outcome for template in templates]
    if Outcome.CORRECT not in graded:
        report.refused.append(
            f"{row.where}: the gold {gold[:200]!r} is graded {graded[0].value} as its own answer"
        )
        return
    template = templates[graded.index(Outcome.CORRECT)]
    if template == "%s" and len(gold) > 200:
        return
    for kind, text in mutants(gold, other=_other_gold(rows, at)):
        outcome = (await grade(template % text)).outcome
        if outcome is Outcome.CORRECT and await _is_right(pool, row, kind, text, template, gold, folder):
            continue
        complaint = f"{row.where}: {text[:200]!r} ({kind}) passes for the gold {gold[:200]!r}"
        report.note_mutant(kind, complaint, outcome)


def _is_guess(reference: object) -> bool:
    """Whether the reading of a mathematical gold, or of one of the parts of a weighted one, is a guess."""
    if isinstance(reference, tuple):
        return any(map(_is_guess, reference))
    return isinstance(reference, MathReference) and reference.is_guess


def _applications(reference: object) -> tuple[str, ...]:
    if isinstance(reference, tuple):
        return tuple(name for part in reference for name in _applications(part))
    return reference.applications if isinstance(reference, MathReference) else ()


async def _is_right(
    pool: VerifierPool, row: GoldRow, kind: str, text: str, template: str, gold: str, folder: Path | None
) -> bool:
    """Whether a mutant that passes is a right answer after all."""
    if kind == "another row's gold" and await _accepts(pool, row, text, template % gold, folder):
        # Each passes for the other: the two rows have the same answer.
        return True
    if isinstance(row.gold, (str, int, float)):
        return False
    for other in _own_answers(row):
        if other != gold and await _accepts(pool, row, [other], template % text, folder):
            return True
    return False


async def _accepts(
    pool: VerifierPool, row: GoldRow, gold: object, response: str, folder: Path | None
) -> bool:
    try:
        reference = pool.parse_reference(row.verifier_name, row.options, gold, folder=folder)
    except ValueError:
        return False
    return (await _verdict(pool, row, response, reference, folder)).outcome is Outcome.CORRECT


async def _verdict(
    pool: VerifierPool, row: GoldRow, response: str, reference: Any, folder: Path | None
) -> Verdict:
    made = partial(response_task, response, row.task)
    return await pool.verify(row.verifier_name, row.options, response, reference, folder=folder, task=made)


def _other_gold(rows: Sequence[GoldRow], at: int) -> str | None:
    """The next gold of the same verifier that is written differently."""
    row = rows[at]
    for step in range(1, min(len(rows), 20)):
        other = rows[(at + step) % len(rows)]
        same_kind = other.verifier_name == row.verifier_name and isinstance(other.gold, (str, int, float))
        if same_kind and str(other.gold).strip() != str(row.gold).strip():
            return str(other.gold)
    return None
