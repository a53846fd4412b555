"""Steps of search and verification in the responses of a run of Countdown, over its steps.

    python -m asyncrl.examples.search_report runs/r1_zero_countdown_cpu [--parts 4]

Prints a Markdown table: reward, and counts per graded response, for equal ranges of steps, with 95% intervals
over groups. Groups that were dropped for no signal are among them. An exact parser counts, by this grammar,
whose equations have the expressions that verifier countdown reads:

    response    = [ item { ";" item } ] [ "<answer>" expression "</answer>" ]
    item        = equation | unread
    equation    = expression "=" { step "=" } number [ comparison ]
    step        = expression
    comparison  = " " ( "is" | "not" ) " " number

What is no equation is kept as `Unread`, so that `write_response` gives any response back to the letter.
"""

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from statistics import fmean, stdev

from asyncrl.errors import InputError
from asyncrl.examples.countdown_pretrain import Game, game_of
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import TrainedResponse, read_recorded, read_responses
from asyncrl.system.places import JOURNAL
from verifiers.countdown import NotAnEquation, evaluate, read_numbers

OPENING, CLOSING = "<answer>", "</answer>"
COMPARISONS = ("is", "not")


@dataclass(frozen=True, slots=True)
class Comparison:
    word: str
    number: int


@dataclass(frozen=True, slots=True)
class Equation:
    expression: str
    said: int
    """The value that the response gives it, right or wrong."""
    comparison: Comparison | None = None
    steps: tuple[str, ...] = ()
    """Reductions of the expression on the way to the value, as written."""

    def is_true(self) -> bool:
        return all(_value_of(text) == self.said for text in (self.expression, *self.steps))


@dataclass(frozen=True, slots=True)
class Unread:
    text: str


@dataclass(frozen=True, slots=True)
class Response:
    items: tuple[Equation | Unread, ...]
    answer: str | None
    """The text in the tags; None where they do not close, or do not end the response."""


def read_response(text: str) -> Response:
    body, answer = text, None
    if text.endswith(CLOSING) and OPENING in text:
        start = text.rindex(OPENING)
        body, answer = text[:start], text[start + len(OPENING) : -len(CLOSING)]
    return Response(tuple(map(_read_item, body.split(";"))) if body else (), answer)


def write_response(response: Response) -> str:
    """The text that `read_response` read."""
    body = ";".join(map(_write_item, response.items))
    return body if response.answer is None else f"{body}{OPENING}{response.answer}{CLOSING}"


@dataclass(frozen=True, slots=True)
class SearchSteps:
    """Counts of one response, or of several in sum."""

    responses: int = 0
    equations: int = 0
    true_equations: int = 0
    attempts: int = 0
    """Equations over exactly the numbers of the game, each once."""
    hits: int = 0
    """Attempts whose expression equals the target."""
    retries: int = 0
    """Attempts after an attempt that misses."""
    checks: int = 0
    """Attempts that are followed by a comparison with the target."""
    true_checks: int = 0
    """Checks that hold for the number that the attempt says."""
    answers: int = 0
    tried_answers: int = 0
    """Answers with the expression of an attempt of the response."""
    stops_at_hit: int = 0
    """Responses whose last item is an attempt that says the target, and that answer with its expression."""
    passed_hits: int = 0
    """Attempts that say the target, and are followed by another item."""

    def __add__(self, other: "SearchSteps") -> "SearchSteps":
        return SearchSteps(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )


def count_steps(text: str, game: Game) -> SearchSteps:
    """Steps of one response."""
    response = read_response(text)
    equations = [item for item in response.items if isinstance(item, Equation)]
    attempts = [
        equation for equation in equations if tuple(sorted(read_numbers(equation.expression))) == game.numbers
    ]
    said = [equation for equation in attempts if equation.said == game.target]
    are_hits = [_value_of(attempt.expression) == game.target for attempt in attempts]
    missed = are_hits.index(False) if False in are_hits else len(attempts)
    checks = [
        attempt for attempt in attempts if attempt.comparison and attempt.comparison.number == game.target
    ]
    ends_at_hit = bool(said) and response.items[-1] is said[-1]
    return SearchSteps(
        responses=1,
        equations=len(equations),
        true_equations=sum(equation.is_true() for equation in equations),
        attempts=len(attempts),
        hits=sum(are_hits),
        retries=max(0, len(attempts) - missed - 1),
        checks=len(checks),
        true_checks=sum(map(_is_true_check, checks)),
        answers=response.answer is not None,
        tried_answers=response.answer in [attempt.expression for attempt in attempts],
        stops_at_hit=ends_at_hit and response.answer == said[-1].expression,
        passed_hits=len(said) - ends_at_hit,
    )


def _is_true_check(attempt: Equation) -> bool:
    assert attempt.comparison is not None, "a check has a comparison"
    said, number = attempt.said, attempt.comparison.number
    return (attempt.comparison.word == "is") == (said == number)


def _read_item(text: str) -> Equation | Unread:
    """An equation where `text` is one to the letter."""
    said, *comparison = text.split(" ")
    *sides, number = said.split("=")
    if not sides or not _is_number(number) or any(_value_of(side) is None for side in sides):
        return Unread(text)
    expression, *steps = sides
    if not comparison:
        return Equation(expression, int(number), steps=tuple(steps))
    if len(comparison) == 2 and comparison[0] in COMPARISONS and _is_number(comparison[1]):
        compared = Comparison(comparison[0], int(comparison[1]))
        return Equation(expression, int(number), compared, tuple(steps))
    return Unread(text)


def _write_item(item: Equation | Unread) -> str:
    if isinstance(item, Unread):
        return item.text
    said = "=".join([item.expression, *item.steps, str(item.said)])
    return f"{said} {item.comparison.word} {item.comparison.number}" if item.comparison else said


def _is_number(text: str) -> bool:
    """Whether `text` is a whole number as the tokenizer writes it: no other digits, no leading zero."""
    return text.isascii() and text.isdigit() and len(text) <= 18 and str(int(text)) == text


def _value_of(expression: str) -> Fraction | None:
    """The exact value; None where it is no expression, or has no value."""
    try:
        return evaluate(expression)
    except NotAnEquation:
        return None


def total(counts: Iterable[SearchSteps]) -> SearchSteps:
    return sum(counts, SearchSteps())


COUNTS = [field.name for field in fields(SearchSteps) if field.name != "responses"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m asyncrl.examples.search_report")
    parser.add_argument("run", type=Path)
    parser.add_argument("--parts", type=int, default=4, help="ranges of steps (default: 4)")
    arguments = parser.parse_args()
    try:
        responses = read_trained(arguments.run / JOURNAL)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(split(responses, max(1, arguments.parts))))
    return 0


def read_trained(journal: Path) -> list[TrainedResponse]:
    """Graded responses, as far as the run has kept their texts. Raises InputError without one."""
    reader = JournalReader(journal)
    kept = [
        recorded.trajectory_id
        for recorded in read_recorded(reader, has_dropped=True)
        if not recorded.is_compacted
    ]
    if not kept:
        raise InputError(f"{journal}: no response was graded yet, or none has kept its text.")
    return read_responses(reader, kept)


def split(responses: Sequence[TrainedResponse], parts: int) -> dict[str, list[TrainedResponse]]:
    """Responses by ranges of steps of equal length, such as "1-25"; the last one may be shorter."""
    last = max(response.step for response in responses)
    length = math.ceil(last / parts)
    found = defaultdict[str, list[TrainedResponse]](list)
    for response in sorted(responses, key=lambda response: response.step):
        start = (response.step - 1) // length * length
        found[f"{start + 1}-{min(start + length, last)}"].append(response)
    return found


def table(ranges: dict[str, list[TrainedResponse]]) -> str:
    """Markdown: a row per count, a column per range of steps."""
    groups = [by_group(responses) for responses in ranges.values()]
    rewards = [_mean([fmean(response.reward or 0.0 for response in group) for group in of]) for of in groups]
    lines = [
        f"| per response, steps | {' | '.join(ranges)} |",
        "|---" * (len(ranges) + 1) + "|",
        f"| reward | {' | '.join(rewards)} |",
    ]
    counts = [
        [total(count_steps(each.text, game_of(each.prompt)) for each in group) for group in of]
        for of in groups
    ]
    for name in COUNTS:
        cells = [_mean([getattr(each, name) / each.responses for each in of]) for of in counts]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_group(responses: Sequence[TrainedResponse]) -> list[list[TrainedResponse]]:
    """The responses to each prompt at each step."""
    found = defaultdict[tuple[str, int], list[TrainedResponse]](list)
    for response in responses:
        found[response.task_id, response.step].append(response)
    return list(found.values())


def _mean(values: list[float]) -> str:
    """The mean and its normal 95% interval; groups are the unit."""
    mean = fmean(values)
    margin = 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return f"{mean:.3f} ± {margin:.3f}"


if __name__ == "__main__":
    sys.exit(main())
