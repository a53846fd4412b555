"""Graded responses of a run with their recorded verdicts, to grade them again.

Steps count from 1. A response that was dropped for no signal stands at the step after its admission.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from asyncrl.journal.connection import Readable
from asyncrl.records import DropReason

_RECORDED = f"""
SELECT t.trajectory_id, g.task_id, coalesce(g.taken_version, g.admitted_version) + 1 AS step, t.text IS NULL
FROM groups AS g JOIN trajectories AS t USING (group_id)
WHERE t.branch_of IS NULL AND t.outcome IS NOT NULL AND step BETWEEN :first AND :last
      AND (g.taken_version IS NOT NULL AND (t.advantage IS NOT NULL OR t.outcome = 'fault')
           OR :has_dropped AND g.reason = '{DropReason.NO_SIGNAL.value}')
ORDER BY g.group_id, t.sample
"""
_RESPONSES = """
SELECT t.trajectory_id, g.task_id, coalesce(g.taken_version, g.admitted_version) + 1, g.prompt, t.text,
       t.outcome, t.reward, t.extracted, t.detail
FROM json_each(:wanted) AS wanted JOIN trajectories AS t ON t.trajectory_id = wanted.value
     JOIN groups AS g USING (group_id)
WHERE t.text IS NOT NULL ORDER BY wanted.key
"""
ANY_STEP = (1, 2**53)


class RecordedResponse(NamedTuple):
    trajectory_id: str
    task_id: str
    step: int
    """Step that trained it first."""
    is_compacted: bool
    """Whether its text is no longer kept."""


@dataclass(frozen=True, slots=True)
class TrainedResponse:
    """A response with the verdict that it was trained by."""

    trajectory_id: str
    task_id: str
    step: int
    prompt: str
    text: str
    outcome: str
    """correct, wrong, no_answer, fault."""
    reward: float | None
    extracted: str | None
    detail: str


def read_recorded(
    journal: Readable, *, steps: tuple[int, int] = ANY_STEP, has_dropped: bool = False
) -> list[RecordedResponse]:
    """Responses that steps `steps` trained, both ends included, without their texts; faults of their groups
    too. With `has_dropped` also those of groups dropped for no signal. In order of admission."""
    first, last = steps
    rows = journal.read(_RECORDED, {"first": first, "last": last, "has_dropped": has_dropped})
    return [RecordedResponse(name, task_id, step, bool(gone)) for name, task_id, step, gone in rows]


def read_responses(journal: Readable, wanted: Sequence[str]) -> list[TrainedResponse]:
    """The responses with these trajectory ids in their order, without those that were compacted meanwhile."""
    rows = journal.read(_RESPONSES, {"wanted": json.dumps(list(wanted))})
    return [
        TrainedResponse(name, task_id, step, prompt, text, outcome, reward, extracted, detail or "")
        for name, task_id, step, prompt, text, outcome, reward, extracted, detail in rows
    ]
