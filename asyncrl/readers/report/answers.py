"""Held-out answers that a run stored: of the base model and of the last version, side by side and over k."""

from collections.abc import Mapping, Sequence

from asyncrl.journal.evaluations import (
    GREEDY,
    Answer,
    evaluated_versions,
    read_answers,
    read_prompts,
    read_texts,
)
from asyncrl.journal.reader import JournalReader
from asyncrl.observe.metrics.sample_curves import Tally, compare
from asyncrl.readers.compare.answers import HELDOUT
from asyncrl.readers.report import schema

CHANGES = ("wrong to right", "right to wrong", "right twice", "wrong twice")
TASKS_PER_CHANGE = 3
MOST_CHARACTERS = 3000
"""Length of a prompt or an answer that is shown whole."""


def before_and_after(journal: JournalReader) -> schema.Answers | None:
    """The first `TASKS_PER_CHANGE` tasks of each change; None without most likely answers of both."""
    versions = evaluated_versions(journal, HELDOUT, is_greedy=True)
    if len(versions) < 2 or versions[0] != 0:
        return None
    steps = versions[0], versions[-1]
    before, after = ({a.task_id: a for a in _of(journal, step) if a.sample == GREEDY} for step in steps)
    changes: dict[str, list[str]] = {change: [] for change in CHANGES}
    for task, answer in before.items():
        if task in after and None not in (answer.correctness, after[task].correctness):
            changes[_change(answer, after[task])].append(task)
    some = {task: change for change, tasks in changes.items() for task in tasks[:TASKS_PER_CHANGE]}
    prompts = read_prompts(journal, HELDOUT)
    texts = [read_texts(journal, step, HELDOUT, [*some]) for step in steps]
    return schema.Answers(
        before_step=steps[0],
        after_step=steps[1],
        counts={change: len(tasks) for change, tasks in changes.items()},
        tasks=[
            schema.AnsweredTask(
                task_id=task,
                prompt=cut(prompts.get(task, "")),
                change=change,
                before=_given(before[task], texts[0]),
                after=_given(after[task], texts[1]),
            )
            for task, change in some.items()
        ],
    )


def sampled_over_k(journal: JournalReader) -> schema.OverK | None:
    """pass@k of the base model and of the last version that was sampled; None without two samples of both."""
    versions = evaluated_versions(journal, HELDOUT, is_greedy=False)
    if len(versions) < 2 or versions[0] != 0:
        return None
    found = [_samples(_of(journal, step)) for step in (versions[0], versions[-1])]
    tasks = [task for task in found[0] if task in found[1]]
    tallies = [[_tally(of_tasks[task]) for task in tasks] for of_tasks in found]
    if any(max((tally.num_samples for tally in each), default=0) < 2 for each in tallies):
        return None
    compared = compare(["base", f"step {versions[-1]}"], tallies)
    return schema.OverK(
        sampled=compared["models"],
        curves=compared["curves"],
        contrasts=compared["contrasts"],
        sentences=compared["sentences"],
    )


def cut(text: str) -> str:
    """`text`, or its beginning and end with the number of characters between them."""
    half = MOST_CHARACTERS // 2
    left_out = len(text) - 2 * half
    if left_out <= 0:
        return text
    return f"{text[:half]}\n[... {left_out:,} of {len(text):,} characters are not shown ...]\n{text[-half:]}"


def _of(journal: JournalReader, step: int) -> list[Answer]:
    return read_answers(journal, step, HELDOUT)


def _change(before: Answer, after: Answer) -> str:
    was_right, is_right = before.correctness == 1.0, after.correctness == 1.0
    if was_right == is_right:
        return "right twice" if is_right else "wrong twice"
    return "wrong to right" if is_right else "right to wrong"


def _given(answer: Answer, texts: Mapping[str, str]) -> schema.GivenAnswer:
    text = texts.get(answer.task_id)
    return schema.GivenAnswer(
        text=None if text is None else cut(text),
        extracted=None if answer.extracted is None else cut(answer.extracted),
        outcome=answer.outcome,
        num_tokens=answer.num_tokens,
        is_cut=answer.is_cut,
    )


def _samples(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Task -> the correctness of each sample with a verdict."""
    found: dict[str, list[float]] = {}
    for answer in answers:
        if answer.sample != GREEDY:
            graded = [] if answer.correctness is None else [answer.correctness]
            found.setdefault(answer.task_id, []).extend(graded)
    return found


def _tally(scores: Sequence[float]) -> Tally:
    """Which samples give equal answers is not stored: there is no maj@k."""
    return Tally(len(scores), sum(score == 1.0 for score in scores), None)
