"""Answers that a result of `asyncrl eval` keeps as text, for readers without a model: of the first tasks."""

from typing import TypedDict

ANSWERS = "answers"
"""Their name in the result."""
MOST_TASKS = 200
MOST_CHARACTERS = 3000
"""Length of a prompt or an answer that is kept whole; of a longer one the beginning and the end are."""


class ShownAnswer(TypedDict):
    task_id: str
    prompt: str
    text: str
    extracted: str | None
    outcome: str
    correctness: float | None
    """In [0, 1]; None for a fault."""
    num_tokens: int
    is_cut: bool


class ShownAnswers(TypedDict):
    is_greedy: bool
    """Whether they are the most likely answers; else the first sample of each task."""
    num_tasks: int
    """Tasks of the evaluation set."""
    tasks: list[ShownAnswer]
    """The first MOST_TASKS, in their order."""
