"""Tasks that were asked more than once, and how the policy's answers to them changed.

A visit is a graded group of a task: the share of right trajectories and the answer that most of them gave.
Between two visits the answer may change, the share may, or both. The changes are summed up while the run is
written, in the order of grading, so the most changeable tasks are found without a look at the others.
"""

from typing import TypedDict

from asyncrl.journal.connection import Readable

_CHANGES = """
SELECT task_id, num_visits, num_changes, moved FROM tasks WHERE num_changes + moved > 0
ORDER BY num_changes + moved DESC, task_id LIMIT :limit OFFSET :offset
"""
_VISITS = """
SELECT group_id, g.admitted_version, g.step + 1, g.state, a.num_graded, a.correct, a.answer, a.num_same
FROM answers a JOIN groups g USING (group_id) WHERE a.task_id = ? ORDER BY group_id DESC LIMIT ?
"""


class Visit(TypedDict):
    group_id: int
    admitted_version: int
    step: int | None
    """That trained it first."""
    state: str
    num_graded: int
    correct: float
    """Mean raw score of its trajectories."""
    answer: str | None
    """The one that most of them gave."""
    num_same: int
    """Trajectories that gave it."""


class ChangedTask(TypedDict):
    task_id: str
    prompt: str
    """Its end, where it is long."""
    num_visits: int
    num_changes: int
    """Visits whose answer was another one than at the visit before."""
    moved: float
    """Sum of the changes of `correct` from visit to visit, each without its sign."""
    visits: list[Visit]
    """The last MOST_VISITS, oldest first."""


MOST_VISITS = 40
LONGEST_PROMPT = 400


def read_changed_tasks(journal: Readable, *, offset: int = 0, limit: int = 25) -> list[ChangedTask]:
    """Those whose answers changed, the most changeable first: changes, plus how far the share moved."""
    return [_task(journal, *row) for row in journal.read(_CHANGES, {"limit": limit, "offset": offset})]


def count_answers(journal: Readable) -> int:
    """Graded groups: whether there is anything new."""
    ((count,),) = journal.read("SELECT count(*) FROM answers")
    return int(count)


def _task(journal: Readable, task_id: str, num_visits: int, num_changes: int, moved: float) -> ChangedTask:
    rows = journal.read(_VISITS, (task_id, MOST_VISITS))
    ((prompt,),) = journal.read(
        "SELECT substr(prompt, ?) FROM groups WHERE group_id = ?", (-LONGEST_PROMPT, rows[0][0])
    )
    return ChangedTask(
        task_id=task_id,
        prompt=prompt,
        num_visits=num_visits,
        num_changes=num_changes,
        moved=moved,
        visits=[
            Visit(
                group_id=group_id,
                admitted_version=admitted,
                step=step,
                state=state,
                num_graded=num_graded,
                correct=correct,
                answer=answer,
                num_same=num_same,
            )
            for group_id, admitted, step, state, num_graded, correct, answer, num_same in reversed(rows)
        ],
    )
