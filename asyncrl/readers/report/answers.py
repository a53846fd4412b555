"""Answers of the base model and of a trained one, that a run stored or `asyncrl eval` kept: side by side, and
those of the run over k."""

from collections.abc import Mapping, Sequence

from asyncrl.journal.evaluations import (
    GREEDY,
    Answer,
    evaluated_versions,
    read_answers,
    read_prompts,
    read_texts,
)
from asyncrl.journal.kept_answers import MOST_CHARACTERS, ShownAnswer
from asyncrl.journal.reader import JournalReader
from asyncrl.observe.metrics.sample_curves import Tally, compare
from asyncrl.readers.compare.answers import HELDOUT
from asyncrl.readers.measured import BASE, Measured
from asyncrl.readers.report import schema
from asyncrl.system.words import shortened

CHANGES = ("wrong to right", "right to wrong", "right twice", "wrong twice")
TASKS_PER_CHANGE = 3


def before_and_after(journal: JournalReader) -> schema.Answers | None:
    """The first `TASKS_PER_CHANGE` tasks of each change; None without most likely answers of both."""
    versions = evaluated_versions(journal, HELDOUT, is_greedy=True)
    if len(versions) < 2 or versions[0] != 0:
        return None
    steps = versions[0], versions[-1]
    before, after = ({a.task_id: a for a in _of(journal, step) if a.sample == GREEDY} for step in steps)
    counts, some = _changes(*({a.task_id: a.correctness for a in each.values()} for each in (before, after)))
    prompts = read_prompts(journal, HELDOUT)
    texts = [read_texts(journal, step, HELDOUT, [*some]) for step in steps]
    return schema.Answers(
        before=f"step {steps[0]}",
        after=f"step {steps[1]}",
        is_greedy=True,
        num_tasks=len(before),
        counts=counts,
        tasks=[
            schema.AnsweredTask(
                task_id=task,
                prompt=_cut(prompts.get(task, "")),
                change=change,
                before=_given(before[task], texts[0]),
                after=_given(after[task], texts[1]),
            )
            for task, change in some.items()
        ],
    )


def measured_before_and_after(measured: Measured) -> schema.Answers | None:
    """As `before_and_after`, of the base model and the last of the others; None where either kept no answers,
    or one the most likely ones and the other samples."""
    kept = [(label, found) for label, found in measured.answers() if found is not None]
    if len(kept) < 2 or kept[0][0] != BASE or kept[0][1]["is_greedy"] != kept[-1][1]["is_greedy"]:
        return None
    (first, _), (last, _) = kept[0], kept[-1]
    before, after = ({a["task_id"]: a for a in kept[place][1]["tasks"]} for place in (0, -1))
    counts, some = _changes(*({t: a["correctness"] for t, a in each.items()} for each in (before, after)))
    return schema.Answers(
        before=first,
        after=last,
        is_greedy=kept[0][1]["is_greedy"],
        num_tasks=kept[0][1]["num_tasks"],
        counts=counts,
        tasks=[
            schema.AnsweredTask(
                task_id=task,
                prompt=before[task]["prompt"],
                change=change,
                before=_kept(before[task]),
                after=_kept(after[task]),
            )
            for task, change in some.items()
        ],
    )


def _changes(
    before: Mapping[str, float | None], after: Mapping[str, float | None]
) -> tuple[dict[str, int], dict[str, str]]:
    """Change -> tasks with a verdict on both answers; the first tasks of each -> their change."""
    changes: dict[str, list[str]] = {change: [] for change in CHANGES}
    for task, correctness in before.items():
        if task in after and None not in (correctness, after[task]):
            changes[_change(correctness == 1.0, after[task] == 1.0)].append(task)
    some = {task: change for change, tasks in changes.items() for task in tasks[:TASKS_PER_CHANGE]}
    return {change: len(tasks) for change, tasks in changes.items()}, some


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


def _of(journal: JournalReader, step: int) -> list[Answer]:
    return read_answers(journal, step, HELDOUT)


def _change(was_right: bool, is_right: bool) -> str:
    if was_right == is_right:
        return "right twice" if is_right else "wrong twice"
    return "wrong to right" if is_right else "right to wrong"


def _given(answer: Answer, texts: Mapping[str, str]) -> schema.GivenAnswer:
    text = texts.get(answer.task_id)
    return schema.GivenAnswer(
        text=None if text is None else _cut(text),
        extracted=None if answer.extracted is None else _cut(answer.extracted),
        outcome=answer.outcome,
        num_tokens=answer.num_tokens,
        is_cut=answer.is_cut,
    )


def _kept(answer: ShownAnswer) -> schema.GivenAnswer:
    return schema.GivenAnswer(
        text=answer["text"],
        extracted=answer["extracted"],
        outcome=answer["outcome"],
        num_tokens=answer["num_tokens"],
        is_cut=answer["is_cut"],
    )


def _cut(text: str) -> str:
    return shortened(text, MOST_CHARACTERS)


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
