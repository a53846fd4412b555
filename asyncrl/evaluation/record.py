"""The rows that the journal keeps of an evaluation: one per graded response, and one per task."""

from collections.abc import Iterator, Sequence

from asyncrl.evaluation.evaluation_set import HELDOUT
from asyncrl.evaluation.result import GradedResponse, Result
from asyncrl.journal.counters import Statement
from asyncrl.journal.evaluations import GREEDY, Answer, evaluated, evaluated_tasks
from asyncrl.records import PolicyVersion, Task


def statements_of(
    version: PolicyVersion, name: str, tasks: Sequence[Task], result: Result
) -> list[Statement]:
    """Rows of the evaluation `name` of `version`, for one transaction. `result` is in the order of `tasks`.

    The text of most likely answers to held-out tasks is kept; benchmarks and samples would be too much.
    """
    greedy = list(_answers(tasks, result.greedy_responses, is_greedy=True))
    sampled = list(_answers(tasks, result.sampled_responses, is_greedy=False))
    texts = [response.text for group in result.greedy_responses for response in group]
    return [
        *evaluated_tasks(name, ((task.task_id, task.prompt) for task in tasks)),
        *evaluated(version, name, greedy, texts if name == HELDOUT else None),
        *evaluated(version, name, sampled, None),
    ]


def _answers(
    tasks: Sequence[Task], groups: Sequence[Sequence[GradedResponse]], *, is_greedy: bool
) -> Iterator[Answer]:
    if not groups:
        return
    for task, group in zip(tasks, groups, strict=True):
        for sample, response in enumerate(group):
            score = response.score
            yield Answer(
                task.task_id,
                GREEDY if is_greedy else sample,
                score.outcome,
                score.correctness,
                response.num_tokens,
                response.is_cut,
                score.extracted,
            )
