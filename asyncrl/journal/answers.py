"""Tasks that were asked more than once, and how the policy's answers to them changed.

A visit is a graded group of a task: the share of right trajectories and the answer that most of them gave.
Between two visits the answer may change, the share may, or both. The changes are summed up while the run is
written, in the order of grading, so the most changeable tasks are found without a look at the others.
"""

import json
from typing import TypedDict, cast

from asyncrl.journal.connection import Readable

_CHANGES = """
SELECT task_id, num_visits, num_changes, moved FROM tasks WHERE num_changes + moved > 0
ORDER BY num_changes + moved DESC, task_id LIMIT :limit OFFSET :offset
"""
_VISITS = """
SELECT a.task_id, group_id, g.admitted_version, g.taken_version + 1, g.state, a.num_graded, a.correct,
       a.answer, a.num_same
FROM json_each(:tasks) AS wanted JOIN answers AS a ON a.task_id = wanted.value
     JOIN groups AS g USING (group_id)
WHERE group_id >= coalesce((
    SELECT group_id FROM answers WHERE task_id = wanted.value
    ORDER BY group_id DESC LIMIT 1 OFFSET :most - 1), 0)
ORDER BY group_id
"""
_PROMPTS = """
SELECT group_id, substr(prompt, :longest) FROM groups WHERE group_id IN (SELECT value FROM json_each(:last))
"""


class Visit(TypedDict):
    group_id: int
    admitted_version: int
    step: int | None
    """Step that trained it first."""
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
    """The prompt; its end, where it is long."""
    num_visits: int
    num_changes: int
    """Visits whose answer differs from that of the visit before."""
    moved: float
    """Sum of the changes of `correct` from visit to visit, each without its sign."""
    visits: list[Visit]
    """The last MOST_VISITS, oldest first."""


MOST_VISITS = 40
LONGEST_PROMPT = 400


def read_changed_tasks(journal: Readable, *, offset: int = 0, limit: int = 25) -> list[ChangedTask]:
    """Tasks whose answers changed, the most changeable first: changes, plus how far the share moved."""
    rows = journal.read(_CHANGES, {"limit": limit, "offset": offset})
    visits: dict[str, list[Visit]] = {task_id: [] for task_id, *_ in rows}
    # A query opens the file: one for all tasks, not one for each.
    for task_id, *row in journal.read(_VISITS, {"tasks": json.dumps([*visits]), "most": MOST_VISITS}):
        visits[task_id].append(cast(Visit, dict(zip(Visit.__annotations__, row, strict=True))))
    last = json.dumps([each[-1]["group_id"] for each in visits.values()])
    prompts = dict(journal.read(_PROMPTS, {"longest": -LONGEST_PROMPT, "last": last}))
    return [
        ChangedTask(
            task_id=task_id,
            prompt=prompts[visits[task_id][-1]["group_id"]],
            num_visits=num_visits,
            num_changes=num_changes,
            moved=moved,
            visits=visits[task_id],
        )
        for task_id, num_visits, num_changes, moved in rows
    ]
