"""Sums of 2 to 24 numbers of two digits, and how one works them with a running total.

Most sums are short and a few are very long, and so are the worked answers (about 30 to 360 tokens): a
trainer that waits for the longest answer of a batch, or pads to it, pays for it. No torch.
"""

from itertools import pairwise
from math import log
from random import Random

from asyncrl.examples.arithmetic import Terms, read_columns

MIN_TERMS, MAX_TERMS = 2, 24
MEDIAN_TERMS, SPREAD_TERMS = 5, 0.7
"""Of the log-normal number of terms, before those outside the bounds are drawn anew."""
NUM_COLUMNS = 3
"""Of a running total: ones, tens, and all the hundreds together."""


def draw_long_sum(random: Random) -> Terms:
    """2 to 24 different numbers from 10 to 49; how many is log-normal, so that long sums are the tail."""
    num_terms = 0
    while not MIN_TERMS <= num_terms <= MAX_TERMS:
        num_terms = round(random.lognormvariate(log(MEDIAN_TERMS), SPREAD_TERMS))
    # Different numbers, so that the place in the prompt is known from the number worked last.
    return tuple(random.sample(range(10, 50), num_terms))


def work_long_sum(terms: Terms, random: Random, noise: float) -> tuple[str, int]:
    """The working of `terms` and the sum it comes to: "06,02,00;26+39+15,06,00;39+48=13,11,01", 113.

    It begins with the first term: ones, tens, hundreds. A step copies the term worked last, the next one and
    the sign behind it from the prompt, so that each is found by what stands before it, and "=" foretells the
    end; then it writes the column sums of the running total and the next term, carries included. They always
    have two digits, so that what a column is made of stands equally far before it in every step.

    With probability `noise` a step has a column that is off by one; all after it is consistent with that.
    """
    columns = [terms[0] % 10, terms[0] // 10, 0]
    steps = [_write(columns)]
    for place, (term, next_term) in enumerate(pairwise(terms), start=2):
        slipped = random.randrange(NUM_COLUMNS) if random.random() < noise else None
        columns = _add(columns, next_term, slipped, random)
        sign = "=" if place == len(terms) else "+"
        steps.append(f"{term}+{next_term}{sign}{_write(columns)}")
    return ";".join(steps), read_columns(columns)


def _add(columns: list[int], term: int, slipped: int | None, random: Random) -> list[int]:
    """The column sums of `term` and the total that `columns` stand for; column `slipped` is off by one."""
    addends, sums, carry = (term % 10, term // 10, 0), list[int](), 0
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
