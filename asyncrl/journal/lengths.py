"""When a run's groups were admitted and how long their responses are, for a simulation that draws from them.

Compacted ones count too.
"""

from typing import NamedTuple

from asyncrl.journal.connection import Readable
from asyncrl.journal.packing import NUMBER_BYTES

_LENGTHS = """
SELECT g.group_id, g.admitted_version, g.admitted_seconds, g.reason, LENGTH(t.prompt_tokens) / {bytes},
       coalesce((SELECT SUM(LENGTH(tokens)) / {bytes} FROM segments s
                 WHERE s.trajectory_id = t.trajectory_id),
                (SELECT num_tokens FROM compacted c WHERE c.trajectory_id = t.trajectory_id), 0)
FROM groups g JOIN trajectories t USING (group_id) WHERE t.finish IS NOT NULL ORDER BY g.group_id, t.sample
"""


class GroupLengths(NamedTuple):
    admitted_version: int
    admitted_seconds: float
    """Unix time."""
    dropped_for: str | None
    """The reason, of a dropped group."""
    prompt_tokens: int
    """0 once compacted."""
    response_tokens: list[int]
    """Of its trajectories that have ended."""


def read_lengths(journal: Readable) -> list[GroupLengths]:
    """One per group with an ended trajectory, in admission order."""
    found: dict[int, GroupLengths] = {}
    rows = journal.read(_LENGTHS.format(bytes=NUMBER_BYTES))
    for group_id, version, seconds, reason, prompt, response in rows:
        group = found.setdefault(group_id, GroupLengths(version, seconds, reason, prompt, []))
        group.response_tokens.append(response)
    return list(found.values())
