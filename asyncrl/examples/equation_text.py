"""Unstructured arithmetic text: lines of true equations about a few listed numbers. No torch.

    7 75 5 6 4:4*5=20;6*7=42 not 75;(7+4)*6=66 under 75<answer>(7+4)*6</answer>

What stands in a line is drawn independently of what it comes to: how many equations there are, over which of
the listed numbers, whether one is compared with a listed number, and whether the line ends by quoting an
expression. So no text searches, and none stops because something was reached. What a line says is true.

Lines with one of these are left out, so that nothing of Countdown can be copied: a head that has the form of
a prompt; a quoted expression of three numbers that equals a listed number of two digits; and anything of a
held-out game: all its numbers with its target in one head, or an equation over them that comes to its target.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import NamedTuple

from asyncrl.examples.arithmetic import Terms
from asyncrl.examples.corpus import Example
from asyncrl.examples.countdown import LARGE, SMALL, Game, Numbers, is_prompt, write_head
from verifiers.countdown import evaluate, read_numbers

VALUES = range(100)
"""Values of equations."""
NUM_LISTED = (3, 4, 4, 5)
"""Numbers in a head, drawn from these."""


@dataclass(frozen=True, slots=True)
class LineMix:
    """Make-up of a line, as probabilities."""

    large: float = 0.25
    """A listed number has two digits."""
    three: float = 0.7
    """An equation has three operands, else two."""
    large_operands: float = 0.04
    """Operands are drawn from all listed numbers, else from those of one digit."""
    chained: float = 0.05
    """The first operand is the value of the equation before."""
    compared: float = 0.5
    """An equation is followed by a comparison with a listed number."""
    answered: float = 0.6
    """The line ends with an expression in <answer>."""
    quoted: float = 0.9
    """That is the line's last one, else a new one."""
    most_equations: int = 8
    """A line has 1 to this many."""


class Equation(NamedTuple):
    expression: str
    value: int


def draw_lines(mix: LineMix, *, count: int, seed: int, without: Collection[Game]) -> Iterator[Example]:
    """`count` lines without anything of the games `without`; the same seed gives the same ones."""
    random, held_out = Random(seed), frozenset(without)
    made = 0
    while made < count:
        head = _draw_head(mix, random)
        if is_prompt(head) or not held_out.isdisjoint(_games_in(head)):
            continue
        equations = _draw_equations(head, mix, random)
        answer = _draw_answer(head, equations, mix, random)
        if any(_game_of(equation) in held_out for equation in equations) or _solves(answer, head):
            continue
        made += 1
        text = ";".join(_write(equation, head, mix, random) for equation in equations)
        quoted = f"<answer>{answer.expression}</answer>" if answer else ""
        yield Example(head, write_head(head), text + quoted)


def _draw_head(mix: LineMix, random: Random) -> Terms:
    count = random.choice(NUM_LISTED)
    return tuple(random.choice(LARGE if random.random() < mix.large else SMALL) for _ in range(count))


def _draw_equations(head: Numbers, mix: LineMix, random: Random) -> list[Equation]:
    equations = list[Equation]()
    for _ in range(random.randint(1, mix.most_equations)):
        before = equations[-1].value if equations and random.random() < mix.chained else None
        equations.append(_draw_equation(head, mix, random, before))
    return equations


def _draw_equation(head: Numbers, mix: LineMix, random: Random, before: int | None = None) -> Equation:
    small = [number for number in head if number in SMALL]
    while True:
        pool = list(head) if len(small) < 2 or random.random() < mix.large_operands else list(small)
        random.shuffle(pool)
        operands = pool[: 3 if random.random() < mix.three else 2]
        if before is not None:
            operands[0] = before
        expression = _write_expression(operands, random)
        value = evaluate(expression)
        if value in VALUES:
            return Equation(expression, int(value))


def _write_expression(operands: list[int], random: Random) -> str:
    """Operands in their order between random signs; parentheses only where they matter."""
    signs = [random.choice("+-*") for _ in operands[1:]]
    if len(operands) == 2:
        return f"{operands[0]}{signs[0]}{operands[1]}"
    (a, b, c), (first, second) = operands, signs
    form = random.randrange(4)
    if form == 0 and first != "*" and second == "*":
        return f"({a}{first}{b}){second}{c}"
    if form == 1 and first != "+" and second != "*":
        return f"{a}{first}({b}{second}{c})"
    return f"{a}{first}{b}{second}{c}"


def _draw_answer(head: Numbers, equations: list[Equation], mix: LineMix, random: Random) -> Equation | None:
    if random.random() >= mix.answered:
        return None
    return equations[-1] if random.random() < mix.quoted else _draw_equation(head, mix, random)


def _write(equation: Equation, head: Numbers, mix: LineMix, random: Random) -> str:
    """The equation, and maybe a comparison: " is 15" where its value is listed, else with a listed number of
    two digits, if there is one."""
    said = f"{equation.expression}={equation.value}"
    if random.random() >= mix.compared:
        return said
    if equation.value in head:
        return f"{said} is {equation.value}"
    other = random.choice([number for number in head if number in LARGE] or head)
    return f"{said} {random.choice(('not', 'over' if equation.value > other else 'under'))} {other}"


def _game_of(equation: Equation) -> Game:
    return Game(tuple(sorted(read_numbers(equation.expression))), equation.value)


def _games_in(head: Numbers) -> Iterator[Game]:
    """All ways to read three of the listed numbers as those of a game, and another one as its target."""
    for target, *numbers in permutations(head, 4):
        yield Game(tuple(sorted(numbers)), target)


def _solves(answer: Equation | None, head: Numbers) -> bool:
    """Whether the answer reaches a listed number of two digits by three others: it would solve a game."""
    if answer is None or answer.value not in LARGE:
        return False
    operands = read_numbers(answer.expression)
    return len(operands) == 3 and answer.value in Counter(head) - Counter(operands)
