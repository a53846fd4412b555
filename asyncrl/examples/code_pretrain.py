"""Makes data and a base model for the code example, alone or mixed with additions: a `prepare.target`.

A task takes numbers from a list, maps them, and puts them together: "distinct of minus 3 for over 5" wants
len({x-3 for x in a if x>5}). It has hidden tests. The corpus writes the bugs that people write (>= for >, the
minuend and the subtrahend swapped, no set), more often than not, so that a base model prefers them; the right
program is in it as well. The tokenizer knows words.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from asyncrl.examples.base_model import make_base_model
from asyncrl.examples.rows import (
    CHARACTERS,
    MARKERS,
    SPECIAL,
    DataRow,
    Example,
    Mix,
    Pretraining,
    Progress,
    draw_addition,
    draw_examples,
    draw_problems,
    parse_options,
    problem_of,
    row_of,
    split_tokenizer,
    work_addition,
    write_rows,
)
from asyncrl.recipe.sections.section import Fraction, Positive

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


WORDS = (
    "def f a return sum len x for in if of same square plus minus times list distinct all even odd over under"
).split()
VOCABULARY = (*SPECIAL, *MARKERS, *CHARACTERS, *"{[]<>%", *WORDS)
"""One token per word of the tasks and programs, per digit and per sign; a name may not occur twice."""


class CodeOptions(Pretraining):
    """`prepare.options` of a recipe whose target is `prepare`."""

    arithmetic_share: Fraction = 0.0
    """Share of rows and corpus that are additions; above 0 the run mixes two tasks and two verifiers."""
    num_heldout: Positive = 256
    """Rows of heldout.jsonl; none of them is in train.jsonl or in the corpus."""
    inclusive: Fraction = 0.6
    swapped: Fraction = 0.6
    duplicates: Fraction = 0.6
    slip: Fraction = 0.05
    """Chances of the bugs: Bugs."""
    num_examples: Positive = 20000
    """Examples of the corpus; each is seen once."""


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ (weights, tokenizer) into `folder`. Raises InputError."""
    settings = parse_options(CodeOptions, options)
    examples = write_data(folder, settings)
    make_base_model(folder / "model", build_tokenizer(), examples, settings, progress)


def write_data(folder: Path, settings: CodeOptions) -> list[Example]:
    """The two data files; the corpus, which holds none of the held-out tasks."""
    tasks = draw_tasks(count=1800, seed=settings.seed)
    share, random = settings.arithmetic_share, Random(settings.seed)
    num_sums = round(settings.num_heldout * share)
    sums = draw_problems(draw_addition, count=num_sums + round(4000 * share), seed=settings.seed)
    num_code = settings.num_heldout - num_sums
    heldout = [row_of_task(task, seed=settings.seed) for task in tasks[:num_code]] + [
        *map(row_of, sums[:num_sums])
    ]
    train = [row_of_task(task, seed=settings.seed) for task in tasks[num_code:]] + [
        *map(row_of, sums[num_sums:])
    ]
    for name, rows in (("train", train), ("heldout", heldout)):
        random.shuffle(rows)
        write_rows(folder / f"{name}.jsonl", rows)
    bugs = Bugs(settings.inclusive, settings.swapped, settings.duplicates, settings.slip)
    code = draw_code_examples(
        bugs=bugs, count=settings.num_examples, seed=settings.seed + 1, tasks=tasks[num_code:]
    )
    worked = draw_examples(
        draw_addition,
        work_addition,
        mix=Mix(),
        count=round(settings.num_examples * share),
        seed=settings.seed + 1,
        without={problem_of(terms) for terms in sums[:num_sums]},
    )
    examples = [*islice(code, round(settings.num_examples * (1 - share))), *worked]
    random.shuffle(examples)
    return examples


def build_tokenizer() -> Tokenizer:
    """Words, digits and signs are tokens; <bos> stands in front of what is encoded."""
    return split_tokenizer(VOCABULARY, r"<think>|</think>|\\boxed\{|[a-z]+|[\s\S]")
