"""Sums of 2 to 24 named digits, and how one works them with a running total.

Most sums are short and a few are very long, and so are the worked answers (about 30 to 300 tokens): a
trainer that waits for the longest answer of a batch, or pads to it, pays for it. No torch.
"""

from math import log
from random import Random

from asyncrl.examples.arithmetic import Terms, read_columns

NAMES = "abcdefghijklmnopqrstuvwx"
"""Names of the terms, in their order: with a name, the next term is found however long the sum is."""
MIN_TERMS, MAX_TERMS = 2, len(NAMES)
MEDIAN_TERMS, SPREAD_TERMS = 5, 0.7
"""Median and spread of the log-normal number of terms, before those outside the bounds are drawn again."""
NUM_COLUMNS = 3
"""Columns of a running total: ones, tens, and all the hundreds together."""


def draw_long_sum(random: Random) -> Terms:
    """2 to 24 digits; how many is log-normal, so that long sums are the tail."""
    num_terms = 0
    while not MIN_TERMS <= num_terms <= MAX_TERMS:
        num_terms = round(random.lognormvariate(log(MEDIAN_TERMS), SPREAD_TERMS))
    return tuple(random.randint(1, 9) for _ in range(num_terms))


def write_long_sum(terms: Terms) -> str:
    """The prompt: "a7+b3+c9=" asks for 19."""
    return "+".join(f"{name}{term}" for name, term in zip(NAMES, terms, strict=False)) + "="


def work_long_sum(terms: Terms, random: Random, noise: float) -> tuple[str, int]:
    """The working of `terms` and the sum it comes to: "a7+07,00,00;b3+10,01,00;c9=09,01,00", 19.

    A step names the next term, copies it and the sign behind it, so that "=" foretells the end; then it
    writes the column sums of the running total and the term, carries included. They always have two digits,
    so that what a column is made of stands equally far before it in every step.

    With probability `noise` a step has a column that is off by one; all after it is consistent with that.
    """
    columns, steps = [0] * NUM_COLUMNS, list[str]()
    for name, term in zip(NAMES, terms, strict=False):
        slipped = random.randrange(NUM_COLUMNS) if random.random() < noise else None
        columns = _add(columns, term, slipped, random)
        sign = "=" if len(steps) == len(terms) - 1 else "+"
        steps.append(f"{name}{term}{sign}{_write(columns)}")
    return ";".join(steps), read_columns(columns)


def _add(columns: list[int], term: int, slipped: int | None, random: Random) -> list[int]:
    """The column sums of `term` and the total that `columns` stand for; column `slipped` is off by one."""
    addends, sums, carry = (term, 0, 0), list[int](), 0
    for place, (column, addend) in enumerate(zip(columns, addends, strict=True)):
        # The last column holds all the hundreds.
        digit = column if place == NUM_COLUMNS - 1 else column % 10
        result = digit + addend + carry
        if place == slipped:
            # A zero can only be off upwards: a negative column has no digit and no carry.
            result += random.choice([-1, 1]) if result else 1
        sums.append(result)
        carry = result // 10
    return sums


def _write(columns: list[int]) -> str:
    return ",".join(f"{column:02}" for column in columns)
