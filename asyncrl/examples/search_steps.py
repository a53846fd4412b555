"""Steps of search and verification in a response to a game of Countdown, by an exact parser. No torch.

The grammar, whose equations have the expressions that verifier countdown reads:

    response    = [ item { ";" item } ] [ "<answer>" expression "</answer>" ]
    item        = equation | unread
    equation    = expression "=" { step "=" } number [ comparison ]
    step        = expression
    comparison  = " " ( "is" | "not" ) " " number

What is no equation is kept as `Unread`, so that `write_response` gives any response back to the letter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from fractions import Fraction

from asyncrl.examples.countdown import Game
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
    attempts = [equation for equation in equations if _is_attempt(equation, game)]
    said = [equation for equation in attempts if equation.said == game.target]
    missed = next((at for at, attempt in enumerate(attempts) if _misses(attempt, game)), len(attempts))
    checks = [
        attempt for attempt in attempts if attempt.comparison and attempt.comparison.number == game.target
    ]
    ends_at_hit = bool(said) and response.items[-1] is said[-1]
    return SearchSteps(
        responses=1,
        equations=len(equations),
        true_equations=sum(equation.is_true() for equation in equations),
        attempts=len(attempts),
        hits=sum(_value_of(attempt.expression) == game.target for attempt in attempts),
        retries=max(0, len(attempts) - missed - 1),
        checks=len(checks),
        true_checks=sum(map(_is_true_check, checks)),
        answers=response.answer is not None,
        tried_answers=response.answer in [attempt.expression for attempt in attempts],
        stops_at_hit=ends_at_hit and response.answer == said[-1].expression,
        passed_hits=len(said) - ends_at_hit,
    )


def _misses(attempt: Equation, game: Game) -> bool:
    return _value_of(attempt.expression) != game.target


def _is_attempt(equation: Equation, game: Game) -> bool:
    return tuple(sorted(read_numbers(equation.expression))) == game.numbers


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
