"""Countdown with three numbers: all games there are, and their data rows. No torch.

A game asks for an expression of + - * and parentheses that uses each of its numbers once and equals its
target.
"""

from functools import cache
from itertools import combinations_with_replacement, permutations
from operator import add, mul, sub
from random import Random
from typing import NamedTuple

from asyncrl.errors import InputError
from asyncrl.examples.rows import DataRow

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
