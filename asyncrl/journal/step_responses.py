"""Responses of the groups that a step took first: outcome, length and text, group by group."""

from collections.abc import Generator
from typing import NamedTuple

from asyncrl.journal.connection import Readable
from asyncrl.journal.packing import NUMBER_BYTES
from asyncrl.records import PolicyVersion

_GROUPS = "SELECT group_id FROM groups WHERE taken_version = ? ORDER BY group_id"
_RESPONSES = f"""
WITH lines AS (SELECT trajectory_id, coalesce(branch_of, trajectory_id) AS root FROM trajectories
               WHERE group_id = :group),
     lengths AS (SELECT root, sum(length(tokens)) / {NUMBER_BYTES} AS num_tokens
                 FROM lines JOIN segments USING (trajectory_id) GROUP BY root)
SELECT t.outcome, coalesce(l.num_tokens, 0), t.text
FROM trajectories AS t LEFT JOIN lengths AS l ON l.root = t.trajectory_id
WHERE t.group_id = :group AND t.branch_of IS NULL AND t.outcome IS NOT NULL AND t.sample < :num_samples
ORDER BY t.sample
"""


class StepResponse(NamedTuple):
    outcome: str
    """correct, wrong, no_answer, fault."""
    num_tokens: int
    """Sampled, those of branches included."""
    text: str | None
    """The text that the verifier read: of several turns the last one. None once compacted."""


def read_step_responses(
    journal: Readable, version: PolicyVersion, *, num_samples: int
) -> Generator[list[StepResponse]]:
    """The graded responses of each group that the trainer took first at `version`; greedy baselines, which
    stand behind the `num_samples` of a group, are left out.

    A query each, on one connection: opening one parses the whole schema, which costs as much as ten groups.
    It is open until the generator ends or is closed. Raises InputError when the file is damaged.
    """
    with journal.reading() as db:
        for (group,) in db.execute(_GROUPS, (version,)).fetchall():
            rows = db.execute(_RESPONSES, {"group": group, "num_samples": num_samples}).fetchall()
            yield [StepResponse(*row) for row in rows]
