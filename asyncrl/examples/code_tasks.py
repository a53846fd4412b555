"""Small functions over a list, described in a few words, with hidden tests and a buggy pre-training text.

A task takes numbers from a list, maps them, and puts them together: "distinct of minus 3 for over 5" wants
len({x-3 for x in a if x>5}). The corpus writes the bugs that people write (>= for >, the minuend and the
subtrahend swapped, no set), more often than not, so that a base model prefers them; the right program is in
it as well. Owns what a task is, its right answer and its tests. No torch.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from asyncrl.examples.corpus import Example
from asyncrl.examples.rows import DataRow

REDUCTIONS = ("sum", "list", "distinct")
MAPS = ("same", "square", *(f"{name} {n}" for name in ("plus", "minus", "times") for n in range(1, 10)))
FILTERS = ("all", "even", "odd", *(f"{name} {n}" for name in ("over", "under") for n in range(1, 10)))
LIMITS = {"cpu_seconds": 2, "wall_seconds": 4, "memory_mb": 256}
"""Limits of each hidden test's run: far more than a right program takes."""


@dataclass(frozen=True, slots=True)
class CodeTask:
    """One of the functions: 3 reductions, 29 maps, 21 filters."""

    reduction: str
    mapping: str
    condition: str

    @property
    def prompt(self) -> str:
        return f"{self.reduction} of {self.mapping} for {self.condition}:\n"


@dataclass(frozen=True, slots=True)
class Bugs:
    """How often the corpus writes each bug where there is room for it, as probabilities."""

    inclusive: float = 0.6
    """>= for "over", <= for "under"."""
    swapped: float = 0.6
    """3-x for "minus 3"."""
    duplicates: float = 0.6
    """A list where "distinct" asks for a set."""
    slip: float = 0.05
    """The other parity, or a number off by one."""


NO_BUGS = Bugs(0.0, 0.0, 0.0, 0.0)


def draw_tasks(*, count: int, seed: int) -> list[CodeTask]:
    """`count` different tasks, the same for the same seed. Raises ValueError when there are fewer."""
    tasks = [CodeTask(r, m, f) for r in REDUCTIONS for m in MAPS for f in FILTERS]
    if count > len(tasks):
        raise ValueError(f"{count} code tasks are asked for, but there are only {len(tasks)}")
    Random(seed).shuffle(tasks)
    return tasks[:count]


def write_program(task: CodeTask, random: Random, bugs: Bugs) -> str:
    """A one-line program for the task, with the bugs that chance puts in."""
    mapped, taken = _map(task.mapping, random, bugs), _filter(task.condition, random, bugs)
    items = f"{mapped} for x in a{taken}"
    if task.reduction == "sum":
        body = f"sum({items})"
    elif task.reduction == "list":
        body = f"[{items}]"
    else:
        body = f"len([{items}])" if random.random() < bugs.duplicates else f"len({{{items}}})"
    return f"def f(a): return {body}"


def _map(mapping: str, random: Random, bugs: Bugs) -> str:
    name, _, number = mapping.partition(" ")
    if name in ("same", "square"):
        return "x" if name == "same" else "x*x"
    number = _slipped(number, random, bugs)
    if name == "minus" and random.random() < bugs.swapped:
        return f"{number}-x"
    return f"x{'+-*'[('plus', 'minus', 'times').index(name)]}{number}"


def _filter(condition: str, random: Random, bugs: Bugs) -> str:
    name, _, number = condition.partition(" ")
    if name == "all":
        return ""
    if name in ("even", "odd"):
        is_odd = (name == "odd") != (random.random() < bugs.slip)
        return f" if x%2=={int(is_odd)}"
    sign = ">" if name == "over" else "<"
    equal = "=" if random.random() < bugs.inclusive else ""
    return f" if x{sign}{equal}{_slipped(number, random, bugs)}"


def _slipped(number: str, random: Random, bugs: Bugs) -> str:
    if random.random() >= bugs.slip:
        return number
    return str(max(1, min(9, int(number) + random.choice([-1, 1]))))


def answer(task: CodeTask, numbers: list[int]) -> Any:
    """The function's value for `numbers`. Written apart from write_program: each checks the other."""
    name, _, text = task.condition.partition(" ")
    bound = int(text or 0)
    keeps: dict[str, Callable[[int], bool]] = {
        "all": lambda x: True,
        "even": lambda x: x % 2 == 0,
        "odd": lambda x: x % 2 == 1,
        "over": lambda x: x > bound,
        "under": lambda x: x < bound,
    }
    operation, _, text = task.mapping.partition(" ")
    operand = int(text or 0)
    maps: dict[str, Callable[[int], int]] = {
        "same": lambda x: x,
        "square": lambda x: x * x,
        "plus": lambda x: x + operand,
        "minus": lambda x: x - operand,
        "times": lambda x: x * operand,
    }
    mapped = [maps[operation](x) for x in numbers if keeps[name](x)]
    return {"sum": sum(mapped), "list": mapped, "distinct": len(set(mapped))}[task.reduction]


def hidden_tests(task: CodeTask, random: Random) -> list[dict[str, str]]:
    """Calls with their values, on lists that tell each bug from the right program."""
    bound = int(task.condition.partition(" ")[2] or 5)
    # The bound itself and its neighbors, and every number twice, so that a bug in the comparison or
    # the set shows.
    around = [n for n in (bound - 1, bound, bound + 1) for _ in range(2)]
    lists = [
        around,
        [random.randrange(0, 13) for _ in range(8)],
        [random.randrange(0, 13) for _ in range(12)],
        [],
    ]
    return [{"call": f"f({numbers})", "expect": repr(answer(task, numbers))} for numbers in lists]


def row_of_task(task: CodeTask, *, seed: int) -> DataRow:
    """A data row; the tests depend on the task and the seed alone."""
    tests = hidden_tests(task, Random(f"{seed} {task.prompt}"))
    return {"prompt": task.prompt, "answer": {"tests": tests, "limits": LIMITS}, "verifier": "code"}


def draw_code_examples(
    *, bugs: Bugs, count: int, seed: int, tasks: Collection[CodeTask]
) -> Iterator[Example]:
    """`count` examples of the corpus, of `tasks` only; the same seed gives the same ones."""
    random, choices = Random(seed), list(tasks)
    for _ in range(count):
        task = random.choice(choices)
        yield Example((), task.prompt, write_program(task, random, bugs))
