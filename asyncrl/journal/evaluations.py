"""Results of each response of an evaluation: written once per evaluation, read by comparisons of runs.

`name` is "held-out" or that of a benchmark. When a run resumes, rows of versions that it trains again
are removed at the start (`starts.record_start`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from asyncrl.journal.connection import Readable, Statement
from asyncrl.records import PolicyVersion
from verifiers.storable import storable

GREEDY = -1
"""`sample` of the most likely answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A graded response to a task."""

    task_id: str
    sample: int
    """Index of the sample, from 0; GREEDY for the most likely answer."""
    outcome: str
    correctness: float | None
    """Correctness in [0, 1]; None for a fault."""
    num_tokens: int
    is_cut: bool
    extracted: str | None


def evaluated(
    version: PolicyVersion, name: str, answers: Sequence[Answer], texts: Sequence[str] | None
) -> list[Statement]:
    """The answers, each with its text where texts are kept. Samples replace samples of an earlier evaluation
    of `version`, and most likely answers replace most likely ones."""
    replaced = {answer.sample == GREEDY for answer in answers}
    kept: Sequence[str | None] = [None] * len(answers) if texts is None else texts
    return [
        *(
            (
                "DELETE FROM evaluated WHERE version = ? AND name = ? AND (sample = ?) = ?",
                (version, name, GREEDY, is_greedy),
            )
            for is_greedy in sorted(replaced)
        ),
        *(
            (
                "INSERT OR REPLACE INTO evaluated VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    version,
                    name,
                    storable(answer.task_id),
                    answer.sample,
                    answer.outcome,
                    answer.correctness,
                    answer.num_tokens,
                    int(answer.is_cut),
                    answer.extracted,
                    text,
                ),
            )
            for answer, text in zip(answers, kept, strict=True)
        ),
    ]


def evaluated_tasks(name: str, prompts: Iterable[tuple[str, str]]) -> list[Statement]:
    """(task id, prompt) of the tasks that an evaluation asks."""
    return [
        ("INSERT OR REPLACE INTO evaluated_tasks VALUES (?, ?, ?)", (name, storable(task_id), storable(text)))
        for task_id, text in prompts
    ]


def evaluated_versions(journal: Readable, name: str, *, is_greedy: bool) -> list[PolicyVersion]:
    """Versions with stored answers of this evaluation, most likely ones or samples, in order."""
    rows = journal.read(
        "SELECT DISTINCT version FROM evaluated WHERE name = ? AND (sample = ?) = ? ORDER BY version",
        (name, GREEDY, is_greedy),
    )
    return [version for (version,) in rows]


def read_answers(journal: Readable, version: PolicyVersion, name: str) -> list[Answer]:
    """Answers in the order of the tasks; empty where the journal has none of this evaluation."""
    rows = journal.read(
        "SELECT task_id, sample, outcome, correctness, num_tokens, is_cut, extracted FROM evaluated "
        "WHERE version = ? AND name = ? ORDER BY rowid",
        (version, name),
    )
    return [
        Answer(task_id, sample, outcome, correctness, num_tokens, bool(is_cut), extracted)
        for task_id, sample, outcome, correctness, num_tokens, is_cut, extracted in rows
    ]


def read_prompts(journal: Readable, name: str) -> dict[str, str]:
    """Task id -> the text that the model continued."""
    return dict(journal.read("SELECT task_id, prompt FROM evaluated_tasks WHERE name = ?", (name,)))


def read_texts(
    journal: Readable, version: PolicyVersion, name: str, task_ids: Sequence[str]
) -> Mapping[str, str]:
    """Task id -> the most likely answer, where its text was kept."""
    return dict(
        journal.read(
            "SELECT task_id, text FROM evaluated WHERE version = ? AND name = ? AND sample = ? "
            "AND text IS NOT NULL AND task_id IN (SELECT value FROM json_each(?))",
            (version, name, GREEDY, json.dumps(list(task_ids))),
        )
    )
