"""Sums of 2 to 24 numbers of two digits, and how one works them with a running total.

Most sums are short and a few are very long, and so are the worked answers (about 20 to 430 tokens): a
trainer that waits for the longest answer of a batch, or pads to it, pays for it. No torch.
"""

from itertools import pairwise
from random import Random

from asyncrl.examples.arithmetic import Terms, add_columns, read_columns

MIN_TERMS, MAX_TERMS = 2, 24


def draw_long_sum(random: Random) -> Terms:
    """2 to 24 different numbers from 10 to 99; how many is log-uniform, so that long sums are the tail."""
    num_terms = int(MIN_TERMS * ((MAX_TERMS + 1) / MIN_TERMS) ** random.random())
    # Different numbers, so that the place in the prompt is known from the number worked last.
    return tuple(random.sample(range(10, 100), num_terms))


def work_long_sum(terms: Terms, random: Random, noise: float) -> tuple[str, int]:
    """The working of `terms` and the sum it comes to: "58+89:17,14=147;89+26:13,7,1=173", 173.

    A step reads: term+next term:column sums from the right, of the total so far and the next term=new total.
    It begins as the prompt does there, so that the next term is found by what stands before it. Each step has
    a column that is off by one with probability `noise`; what follows is consistent with what is written.
    """
    total, steps = terms[0], []
    for term, next_term in pairwise(terms):
        columns = _add_step(total, next_term, random, noise)
        total = read_columns(columns)
        steps.append(f"{term}+{next_term}:{','.join(map(str, columns))}={total}")
    return ";".join(steps), total


def _add_step(total: int, term: int, random: Random, noise: float) -> list[int]:
    num_columns = len(str(max(total, term)))
    # The chance per column that makes the chance of at least one slip in the step equal to `noise`.
    return add_columns(total, term, random, 1 - (1 - noise) ** (1 / num_columns))
