"""Compaction: tokens that nothing will ask for again leave the journal; their fate stays.

Of a compacted trajectory the versions and lengths of its segments, verdict, reward and fate remain, about a
third of a kilobyte; its tokens, log-probs, what training knew of them, and text go. SQLite uses their pages
again, so the file stops growing. Only batches below every checkpoint that recovery may fall back to are
touched, so compaction can never cost a run anything; groups that a later batch may repeat wait until none
can. `asyncrl reproduce` and the texts of `asyncrl view` reach back as far as compaction left tokens.

Batches are named by the version of the trainer that took them.
"""

from asyncrl.journal.connection import Statement
from asyncrl.journal.queue_state import COMPACTED_BEFORE, compacted_before
from asyncrl.journal.starts import set_fact
from asyncrl.journal.writer import Journal
from asyncrl.records import PolicyVersion

BATCHES_AT_ONCE = 2
"""More than one, to catch up; few, because a barrier waits for what was handed over before it."""

_GROUPS = """
SELECT group_id FROM groups WHERE state = 'trained'
AND taken_version >= :first - :reach AND taken_version < :end - :reach
UNION ALL
SELECT group_id FROM groups WHERE state = 'dropped' AND admitted_version < :end"""
_TRAJECTORIES = f"""
SELECT trajectory_id FROM trajectories WHERE group_id IN ({_GROUPS}) AND length(prompt_tokens) > 0"""
_SUMMARIES = f"""
INSERT OR IGNORE INTO compacted
SELECT trajectory_id, sum(num_tokens), min(version), max(version),
       json_group_array(json_array(version, num_tokens, is_continued))
FROM (SELECT trajectory_id, version, is_continued, sum(length(tokens)) / 4 AS num_tokens FROM segments
      WHERE trajectory_id IN ({_TRAJECTORIES}) GROUP BY trajectory_id, version, is_continued
      ORDER BY trajectory_id, min(position))
GROUP BY trajectory_id"""
_EMPTIED = "segments", "kept_sets", "routes", "teacher_logprobs", "observations", "calls", "trained_tokens"
"""Tables whose rows of a compacted trajectory go."""
_TEXTS = f"""
UPDATE trajectories SET prompt_tokens = x'', text = NULL WHERE trajectory_id IN ({_TRAJECTORIES})"""
_BRANCH_TEXTS = f"UPDATE branch_verdicts SET text = NULL WHERE trajectory_id IN ({_TRAJECTORIES})"


class Compaction:
    """Call `committed` after each commit that is on disk, `run` where the journal has time: after a take."""

    def __init__(
        self, journal: Journal, *, keep_steps: int, keep_checkpoints: int, repeat_reach: int = 0
    ) -> None:
        """`repeat_reach`: a later batch may repeat a group until that many versions after its first one."""
        self._journal = journal
        # An earlier start of the run may have repeated from further back.
        ((reached,),) = journal.read(
            "SELECT coalesce(max(r.taken_version - g.taken_version), 0) "
            "FROM repetitions r JOIN groups g USING (group_id)"
        )
        self._repeat_reach = max(repeat_reach, reached)
        self._keep_steps = keep_steps
        self._keep_checkpoints = keep_checkpoints
        self._done_before = compacted_before(journal)
        self._allowed_before = 0
        self.committed()

    def committed(self) -> None:
        """Reads how far compaction may reach."""
        kept = [
            version
            for (version,) in self._journal.read(
                "SELECT version FROM commits ORDER BY version DESC LIMIT ?", (self._keep_checkpoints,)
            )
        ]
        # A damaged checkpoint sends the trainer back to an older one, which asks for the batches after it.
        if len(kept) == self._keep_checkpoints:
            self._allowed_before = min(kept[-1], kept[0] - self._keep_steps)

    def run(self) -> bool:
        """Hands the oldest BATCHES_AT_ONCE batches to the journal's writer; False when nothing is left to do.

        Raises JournalError.
        """
        end = min(self._done_before + BATCHES_AT_ONCE, self._allowed_before)
        if end <= self._done_before:
            return False
        self._journal.write(*compact(self._done_before, end, self._repeat_reach))
        self._done_before = end
        return True


def compact(first: PolicyVersion, end: PolicyVersion, repeat_reach: int = 0) -> list[Statement]:
    """The statements that compact the batches of versions [first, end) and what was dropped until then."""
    versions = {"first": first, "end": end, "reach": repeat_reach}
    return [
        (_SUMMARIES, versions),
        *((f"DELETE FROM {table} WHERE trajectory_id IN ({_TRAJECTORIES})", versions) for table in _EMPTIED),
        (_TEXTS, versions),
        (_BRANCH_TEXTS, versions),
        set_fact(COMPACTED_BEFORE, str(end)),
    ]
