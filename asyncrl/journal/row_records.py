"""The record of each row of data.train: its visits, how many trajectories passed, and at which versions.

A view of `answers` and `groups`, which the queue writes; nothing is stored for it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from asyncrl.journal.connection import Readable
from asyncrl.records import PolicyVersion, RowVisit

_VISITS = """
SELECT a.task_id, g.prompt, a.group_id, a.version, a.num_graded, a.correct
FROM answers AS a JOIN groups AS g USING (group_id) ORDER BY a.group_id
"""
_ADMISSIONS = "SELECT task_id, prompt, admitted_version FROM groups ORDER BY group_id"
_RECORDS = """
SELECT a.task_id, count(*), sum(a.num_graded), sum(a.num_graded * a.correct) / sum(a.num_graded),
       max(a.group_id), max(a.version), (SELECT max(admitted_version) FROM groups) - max(a.version)
FROM answers AS a GROUP BY a.task_id ORDER BY a.task_id
"""


class Admission(NamedTuple):
    """The choice of a row for a group: that of group 0, 1, 2, ... in order."""

    task_id: str
    prompt: str
    version: PolicyVersion
    """The trainer's."""


class RowRecord(NamedTuple):
    task_id: str
    num_visits: int
    num_graded: int
    pass_rate: float
    """Mean raw score of all trajectories that were graded."""
    last_group: int
    last_version: PolicyVersion
    """At which it was graded last."""
    age: int
    """Versions from then to the newest admission of the run; below 0 for one that was graded since."""


def read_admissions(journal: Readable) -> Iterator[Admission]:
    for row in journal.read(_ADMISSIONS):
        yield Admission(*row)


def read_visits(journal: Readable) -> Iterator[tuple[str, str, RowVisit]]:
    """(task id, prompt, visit) of each graded group, in the order of admission."""
    for task_id, prompt, *visit in journal.read(_VISITS):
        yield task_id, prompt, RowVisit(*visit)


def read_row_records(journal: Readable) -> list[RowRecord]:
    """Each row that was graded, over all of the run."""
    return [RowRecord(*row) for row in journal.read(_RECORDS)]
