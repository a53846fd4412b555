"""Lengths of what a run sampled, summed up. Compacted responses count too."""

from typing import NamedTuple

from asyncrl.journal.connection import Readable
from asyncrl.journal.packing import NUMBER_BYTES

_SAMPLED = """
WITH streamed AS (SELECT trajectory_id, SUM(LENGTH(tokens)) / {bytes} AS r FROM segments GROUP BY 1
                  UNION ALL SELECT trajectory_id, num_tokens FROM compacted),
     known AS (SELECT group_id, LENGTH(prompt_tokens) / {bytes} AS p, s.r AS r
               FROM trajectories JOIN streamed s USING (trajectory_id)),
     mean AS (SELECT AVG(p) AS p FROM known WHERE p > 0),
     each AS (SELECT group_id, CASE WHEN p > 0 THEN p ELSE coalesce((SELECT p FROM mean), 0) END AS p, r
              FROM known),
     prompts AS (SELECT MAX(p) AS p FROM each GROUP BY group_id)
SELECT (SELECT SUM(p) FROM prompts), SUM(r), SUM(MAX(r - 1, 0)),
       SUM(MAX(r - 1, 0) * (p + r / 2.0)) + (SELECT SUM(p * (p + 1) / 2.0) FROM prompts)
FROM each
"""


class SampledTokens(NamedTuple):
    """Totals of a run's sampling, for `asyncrl.model.flops.generation_flops`."""

    num_prompt_tokens: float
    """Prompt tokens, each group's once; a compacted prompt counts as the mean of the others."""
    num_sampled_tokens: int
    num_fed_tokens: int
    """Sampled tokens without the last one of each response, which nothing follows."""
    num_looks: float
    """Positions that the prompts' and the fed tokens look at, each at itself too."""


def read_sampled(journal: Readable) -> SampledTokens:
    """Totals of all trajectories, whatever their fate."""
    ((prompts, sampled, fed, looks),) = journal.read(_SAMPLED.format(bytes=NUMBER_BYTES))
    return SampledTokens(prompts or 0.0, sampled or 0, fed or 0, looks or 0.0)
