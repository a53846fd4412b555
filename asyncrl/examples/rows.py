"""Data files of a sum task: JSONL rows such as any user writes, train and held-out ones disjoint."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import NotRequired, TypedDict

from asyncrl.examples.arithmetic import Terms

Draw = Callable[[Random], Terms]
Problem = tuple[int, ...]
"""Identity of a problem: its terms in ascending order, so 12+34 is 34+12."""


class DataRow(TypedDict):
    """One line of a data file."""

    prompt: str
    answer: object
    """As the verifier wants it."""
    verifier: NotRequired[str]
    """Else `verifying.default`, with its options."""
    size: NotRequired[int]
    """How hard the row is, for data.selection."""


def draw_problems(draw: Draw, *, count: int, seed: int) -> list[Terms]:
    """`count` sums, no problem twice; the same seed gives the same list."""
    random, seen, drawn = Random(seed), set[Problem](), list[Terms]()
    while len(drawn) < count:
        terms = draw(random)
        if problem_of(terms) not in seen:
            seen.add(problem_of(terms))
            drawn.append(terms)
    return drawn


def problem_of(terms: Terms) -> Problem:
    return tuple(sorted(terms))


def prompt_of(terms: Terms) -> str:
    return "+".join(map(str, terms)) + "="


def row_of(terms: Terms, write_prompt: Callable[[Terms], str] = prompt_of) -> DataRow:
    return {"prompt": write_prompt(terms), "answer": str(sum(terms)), "verifier": "math"}


def write_rows(path: Path, rows: Iterable[DataRow]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
