"""The noisy pre-training text of a sum task: mostly direct answers, often wrong; some worked ones.

A base model trained on it knows both ways of answering and prefers the bad one, which reinforcement
learning can fix. The shares are of examples, not of tokens. No torch.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random

from asyncrl.examples.arithmetic import Terms
from asyncrl.examples.rows import Draw, Problem, problem_of, prompt_of

Work = Callable[[Terms, Random, float], tuple[str, int]]
"""(terms, random, noise) -> the working and the sum it comes to."""
OFFSETS = (-100, -10, -1, 1, 10, 100)
"""How far a wrong direct answer is off."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Make-up of the corpus, as probabilities."""

    direct: float = 0.75
    """An answer without working; the others are worked inside <think>."""
    wrong: float = 0.5
    """A direct answer is off by 1, 10 or 100."""
    noise: float = 0.03
    """A step of a working is off by one."""


@dataclass(frozen=True, slots=True)
class Example:
    terms: Terms
    prompt: str
    response: str
    observed: str = ""
    """The part of the response that a tool writes: context, which is not learned."""


def draw_examples(
    draw: Draw,
    work: Work,
    *,
    mix: Mix,
    count: int,
    seed: int,
    without: Collection[Problem],
    write_prompt: Callable[[Terms], str] = prompt_of,
) -> Iterator[Example]:
    """`count` examples, none of a problem in `without`; the same seed gives the same ones."""
    random = Random(seed)
    for _ in range(count):
        terms = draw(random)
        while problem_of(terms) in without:
            terms = draw(random)
        yield Example(terms, write_prompt(terms), _respond(terms, work, mix, random))


def _respond(terms: Terms, work: Work, mix: Mix, random: Random) -> str:
    if random.random() < mix.direct:
        total = sum(terms)
        if random.random() < mix.wrong:
            # No sum is negative, and an answer that is would be known as wrong without adding.
            total += random.choice([offset for offset in OFFSETS if total + offset > 0])
        return f"\\boxed{{{total}}}"
    working, total = work(terms, random, mix.noise)
    return f"<think>{working}</think>\\boxed{{{total}}}"
