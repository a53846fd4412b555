"""Questions of reasoning-gym's chain_sum with terms of one digit, and two ways to answer them: in one go, or
with a running total. No torch; the questions come from reasoning-gym (data/gym.py).
"""

import re
from collections.abc import Collection, Iterable, Iterator
from random import Random

from asyncrl.errors import InputError
from asyncrl.examples.arithmetic import Terms
from asyncrl.examples.corpus import Example

_QUESTION = re.compile(r"State the final answer to the following arithmetic problem: (\d(?: [+-] \d)+) =")


def terms_of(question: str) -> Terms:
    """The terms with their signs: 4, -1, -7 of "... problem: 4 - 1 - 7 =". Raises InputError."""
    found = _QUESTION.fullmatch(question)
    if found is None:
        raise InputError(
            f"The question is {question!r}, expected {_QUESTION.pattern!r}: chain_sum with max_digits: 1 and "
            f"without allow_negation."
        )
    return tuple(map(int, re.findall(r"-?\d", found[1].replace(" ", ""))))


def work_chain_sum(terms: Terms, random: Random, noise: float) -> tuple[str, int]:
    """The working of `terms` and what it comes to: "4-1=+03;-7=-04", -4.

    A step copies the next sign and term, and writes the running total with a sign and two digits: so a term
    stands equally far from its step whatever the totals are. Each step is off by one with probability
    `noise`; all after it is consistent with that.
    """
    first, *others = terms
    total, steps = first, list[str]()
    for term in others:
        total += term
        if random.random() < noise:
            total += random.choice((-1, 1))
        steps.append(f"{term:+d}={total:+03d}")
    return f"{first}{';'.join(steps)}", total


def draw_answers(
    questions: Iterable[str],
    *,
    worked_first: int,
    worked: float,
    noise: float,
    seed: int,
    without: Collection[str],
) -> Iterator[Example]:
    """An example per question that is not in `without`. The first `worked_first` questions are worked inside
    <think>, of the others a share `worked`.

    An answer in one go is right: that a small model gets it wrong is for want of room to work.
    """
    random = Random(seed)
    for index, question in enumerate(questions):
        if question in without:
            continue
        terms = terms_of(question)
        if index < worked_first or random.random() < worked:
            working, total = work_chain_sum(terms, random, noise)
            response = f"<think>{working}</think><answer>{total}</answer>"
        else:
            response = f"<answer>{sum(terms)}</answer>"
        yield Example(terms, question, response)
