"""Responses of a selection graded again by another verifier, as an audit does it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from asyncrl.readers.audit.grading import AuditTasks, Drawn, Regraded, grade_again
from asyncrl.readers.selection.candidate import Candidate
from asyncrl.recipe import Recipe
from asyncrl.rollout.grade import score_of


@dataclass(frozen=True, slots=True)
class Regrading:
    recipe: Recipe
    tasks: AuditTasks

    async def __call__(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those whose gold the other verifier reads, with its verdicts, in their order. Raises NoVerdicts."""
        responses = [each.recorded() for each in candidates]
        drawn = Drawn(responses, len(responses), 0, 0)
        found: dict[str, Regraded] = {}
        await grade_again(self.recipe, drawn, self.tasks, found, lambda: None)
        return [
            replace(
                each,
                score=score_of(found[each.response_id].other),
                verifier=self.tasks.tasks[each.row_id].verifier,
            )
            for each in candidates
            if each.response_id in found
        ]
