"""Makes games of Countdown and a base model that has read arithmetic, but no game: a `prepare.target`.

A game asks for an expression of + - * and parentheses that uses each of its three numbers once and equals its
target. The base model reads lines of true equations about a few listed numbers, with a token per number:

    7 75 5 6 42:7-5=2;6*7-5=42-5=37 not 75;6*7=42 is 42;(7+5)*6=12*6=72<answer>(7+5)*6</answer>

What stands in a line is drawn independently of what its equations come to: how many there are, over which of
the listed numbers, whether one is compared with a listed number, and whether the line ends by quoting the
last expression. So no text searches, and none stops because something was reached. What a line says is true.

None of these is drawn, so that nothing of Countdown can be copied: a head that has the form of a prompt; an
equation of three numbers that equals a listed number of two digits, which would solve a game; and anything of
a held-out game: all its numbers with its target in one head, or an equation over them that comes to its
target.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, combinations_with_replacement, permutations
from operator import add, mul, sub
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from asyncrl.errors import InputError
from asyncrl.examples.rows import (
    SPECIAL,
    DataRow,
    Example,
    Pretraining,
    Progress,
    parse_options,
    split_tokenizer,
    write_rows,
)
from asyncrl.recipe.sections.section import Positive
from verifiers.countdown import evaluate

SMALL = range(1, 10)
"""Numbers of a game."""
LARGE = range(10, 100)
"""Its target."""
Numbers = tuple[int, ...]


class Game(NamedTuple):
    numbers: Numbers
    """Three, in ascending order: the identity of a game does not depend on the order of the prompt."""
    target: int


def solvable_games() -> list[Game]:
    """Every game that + - * solve, in one order."""
    return [
        Game(numbers, target)
        for numbers in combinations_with_replacement(SMALL, 3)
        for target in sorted(values_of(numbers))
        if target in LARGE
    ]


@cache
def values_of(numbers: Numbers) -> frozenset[int]:
    """Values of all expressions of + - * that use each of three numbers once."""
    operations = (add, sub, mul)
    found = set[int]()
    for a, b, c in permutations(numbers):
        for inner in operations:
            for outer in operations:
                found |= {outer(inner(a, b), c), outer(c, inner(a, b))}
    return frozenset(found)


def row_of(game: Game, random: Random) -> DataRow:
    """The row of a game, its numbers in a random order."""
    numbers = list(game.numbers)
    random.shuffle(numbers)
    answer = {"target": game.target, "numbers": numbers}
    return {"prompt": write_head((*numbers, game.target)), "answer": answer, "verifier": "countdown"}


def write_head(numbers: Numbers) -> str:
    """The head of a line: "3 5 7 22:". As a prompt it lists the numbers of a game, then its target."""
    return " ".join(map(str, numbers)) + ":"


def is_prompt(numbers: Numbers) -> bool:
    """Whether a head of these numbers has the form of a game's prompt, solvable or not."""
    return len(numbers) == 4 and all(number in SMALL for number in numbers[:3]) and numbers[3] in LARGE


def game_of(prompt: str) -> Game:
    """The game of a prompt as `row_of` writes it. Raises InputError."""
    numbers = tuple(int(word) for word in prompt.removesuffix(":").split(" ") if word.isdigit())
    if not is_prompt(numbers) or write_head(numbers) != prompt:
        raise InputError(
            f'The prompt is {prompt!r}, expected three numbers and a target such as "3 5 7 22:".'
        )
    return Game(tuple(sorted(numbers[:3])), numbers[3])


VALUES = range(100)
"""Values of equations and of their steps."""
NUM_SMALL = (2, 3, 3, 3, 4)
"""Numbers of one digit in a head, drawn from these."""
NUM_LARGE = (0, 1, 1, 2)
"""Numbers of two digits in it."""


@dataclass(frozen=True, slots=True)
class LineMix:
    """Make-up of a line, as probabilities."""

    made: float = 0.5
    """A listed number of two digits is the value of an equation of two others, else any."""
    three: float = 0.8
    """An equation has three operands, else two."""
    compared: float = 0.6
    """An equation is followed by a comparison with a listed number."""
    another: float = 0.78
    """An equation is followed by another one, up to `most_equations`."""
    most_equations: int = 10
    answered: float = 0.7
    """The line ends with its last expression in <answer>."""


class Equation(NamedTuple):
    expression: str
    steps: tuple[str, ...]
    """Reductions of the expression on the way to its value."""
    value: int


def draw_lines(mix: LineMix, *, count: int, seed: int, without: Collection[Game]) -> Iterator[Example]:
    """`count` lines without anything of the games `without`; the same seed gives the same ones."""
    random, held_out = Random(seed), frozenset(without)
    made = 0
    while made < count:
        head = _draw_head(mix, random)
        if is_prompt(head) or not held_out.isdisjoint(_games_in(head)):
            continue
        made += 1
        equations = _draw_equations(head, mix, random, held_out)
        text = ";".join(_write(equation, head, mix, random) for equation in equations)
        quoted = f"<answer>{equations[-1].expression}</answer>" if random.random() < mix.answered else ""
        yield Example(head, write_head(head), text + quoted)


def _draw_head(mix: LineMix, random: Random) -> Numbers:
    small = [random.choice(SMALL) for _ in range(random.choice(NUM_SMALL))]
    large = [_draw_large(small, mix, random) for _ in range(random.choice(NUM_LARGE))]
    head = [*small, *large]
    random.shuffle(head)
    return tuple(head)


def _draw_large(small: list[int], mix: LineMix, random: Random) -> int:
    if random.random() < mix.made:
        value = _reduce(random.sample(small, 2), random).value
        if value in LARGE:
            return value
    return random.choice(LARGE)


def _draw_equations(
    head: Numbers, mix: LineMix, random: Random, held_out: Collection[Game]
) -> list[Equation]:
    small = [number for number in head if number in SMALL]
    equations = list[Equation]()
    while not equations or (len(equations) < mix.most_equations and random.random() < mix.another):
        count = 3 if len(small) > 2 and random.random() < mix.three else 2
        while True:
            operands = random.sample(small, count)
            equation = _reduce(operands, random)
            if not _solves(equation, head) and Game(tuple(sorted(operands)), equation.value) not in held_out:
                break
        equations.append(equation)
    return equations


def _reduce(operands: list[int], random: Random) -> Equation:
    """A random expression over `operands` in their order, whose value and step are in VALUES."""
    while True:
        equation = _draw_two(operands, random) if len(operands) == 2 else _draw_three(operands, random)
        if equation is not None:
            return equation


def _draw_two(operands: list[int], random: Random) -> Equation | None:
    a, b = operands
    expression = f"{a}{random.choice('+-*')}{b}"
    value = _value_of(expression)
    return None if value is None else Equation(expression, (), value)


def _draw_three(operands: list[int], random: Random) -> Equation | None:
    """Parentheses stand only where they matter; the inner operation is worked first."""
    (a, b, c), first, second = operands, random.choice("+-*"), random.choice("+-*")
    form = random.randrange(4)
    if form == 0 and first != "*" and second == "*":
        expression, inner, is_left = f"({a}{first}{b}){second}{c}", f"{a}{first}{b}", True
    elif form == 1 and first != "+" and second != "*":
        expression, inner, is_left = f"{a}{first}({b}{second}{c})", f"{b}{second}{c}", False
    else:
        expression, is_left = f"{a}{first}{b}{second}{c}", first == "*" or second != "*"
        inner = f"{a}{first}{b}" if is_left else f"{b}{second}{c}"
    worked, value = _value_of(inner), _value_of(expression)
    if worked is None or value is None:
        return None
    step = f"{worked}{second}{c}" if is_left else f"{a}{first}{worked}"
    return Equation(expression, (step,), value)


def _value_of(expression: str) -> int | None:
    value = evaluate(expression)
    return int(value) if value in VALUES else None


def _write(equation: Equation, head: Numbers, mix: LineMix, random: Random) -> str:
    """The equation, and maybe a comparison: " is 15" where its value is listed, else " not" and a listed
    number, of two digits if there is one."""
    said = "=".join([equation.expression, *equation.steps, str(equation.value)])
    if random.random() >= mix.compared:
        return said
    if equation.value in head:
        return f"{said} is {equation.value}"
    return f"{said} not {random.choice([number for number in head if number in LARGE] or head)}"


def _games_in(head: Numbers) -> Iterator[Game]:
    """All ways to read three of the listed numbers as a game's, and one of two digits as its target."""
    small = sorted(number for number in head if number in SMALL)
    for target in filter(LARGE.__contains__, head):
        for numbers in combinations(small, 3):
            yield Game(numbers, target)


def _solves(equation: Equation, head: Numbers) -> bool:
    """Whether the equation reaches a listed number of two digits by three others: it would solve a game."""
    return equation.value in LARGE and equation.value in head and bool(equation.steps)


TAGS = ("<answer>", "</answer>")
WORDS = (" is ", " not ")
CONTEXT_TOKENS = 192
BATCHES_SORTED = 16
"""Batches whose lines are sorted by length together."""
VOCABULARY = (*SPECIAL, *TAGS, *WORDS, *"+-*()=;: ", *map(str, VALUES))


class CountdownOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    examples_per_batch: Positive = 64
    num_heldout: Positive = 256
    """Rows of heldout.jsonl; all other games are rows of train.jsonl."""
    num_lines: Positive = 20000
    """Lines of the corpus; each is seen once."""
    hidden_size: Positive = 96


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    # It loads torch and transformers.
    from asyncrl.examples.base_model import make_base_model

    settings = parse_options(CountdownOptions, options)
    random, games = Random(settings.seed), solvable_games()
    random.shuffle(games)
    heldout, train = games[: settings.num_heldout], games[settings.num_heldout :]
    write_rows(folder / "train.jsonl", (row_of(game, random) for game in train))
    write_rows(folder / "heldout.jsonl", (row_of(game, random) for game in heldout))
    lines = draw_lines(LineMix(), count=settings.num_lines, seed=settings.seed + 1, without=heldout)
    make_base_model(
        folder / "model",
        build_tokenizer(),
        batch_by_length(lines, settings.examples_per_batch, random),
        settings,
        progress,
        max_position_embeddings=CONTEXT_TOKENS,
        hidden_size=settings.hidden_size,
    )


def batch_by_length(lines: Iterable[Example], examples_per_batch: int, random: Random) -> list[Example]:
    """Lines in an order whose batches hold similar lengths, the batches shuffled: without it a batch is seven
    micro-batches of other lengths, whose calls take longer than their arithmetic."""
    ordered, batches = list(lines), list[list[Example]]()
    for start in range(0, len(ordered), BATCHES_SORTED * examples_per_batch):
        pool = ordered[start : start + BATCHES_SORTED * examples_per_batch]
        pool.sort(key=lambda line: len(line.response))
        batches += [pool[at : at + examples_per_batch] for at in range(0, len(pool), examples_per_batch)]
    # A smaller one stays the last one, or those behind it would be cut elsewhere.
    random.shuffle(rest := batches[:-1])
    return [line for batch in (*rest, batches[-1]) for line in batch]


def build_tokenizer() -> Tokenizer:
    """<bos> stands in front of what is encoded; what is no token is an error."""
    words = "|".join(WORDS)
    return split_tokenizer(VOCABULARY, rf"</?answer>|{words}|\d+|[\s\S]")
