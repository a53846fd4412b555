"""Columns of a step that are measured of its groups as they leave the queue, before they are trained."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.observe.metrics.fault_causes import DroppedGroups
from asyncrl.observe.metrics.prometheus import RunMetrics
from asyncrl.observe.metrics.step_metrics import group_metrics, length_metrics, staleness_metrics
from asyncrl.observe.metrics.turn_metrics import agent_calls, source_metrics, turn_metrics
from asyncrl.recipe import Recipe
from asyncrl.records import PolicyVersion
from asyncrl.replay.group import Group
from asyncrl.replay.policy import length_bias
from asyncrl.replay.queue import ReplayQueue

_OF_VERDICTS = (
    *(
        "verifier_",
        "judge_",
        "reward_",
        "pilots_",
        "response_tokens_mean_by_outcome",
        "no_signal_token_share",
    ),
    *("faults_retried", "outcomes", "correct_", "groups_"),
)
"""How columns begin that speak of verifiers and rewards."""
_OF_THE_CONTROLLER = (*_OF_VERDICTS, "rollout_", "requests_", "cache_", "reflection_words", "retractions")
"""How columns begin that speak of servers, verifiers and rewards."""


def row_columns(row: dict[str, Any]) -> dict[str, Any]:
    """A step's columns without those of servers, verifiers and rewards."""
    return {name: value for name, value in row.items() if not name.startswith(_OF_THE_CONTROLLER)}


def unjudged_columns(row: dict[str, Any]) -> dict[str, Any]:
    """A step's columns without those of verifiers and rewards."""
    return {name: value for name, value in row.items() if not name.startswith(_OF_VERDICTS)}


Measure = Callable[[Sequence[Group]], Mapping[str, Any]]
"""Columns of the new groups of a batch."""


def optional_columns(recipe: Recipe) -> list[Measure]:
    """Columns that only a run with turns, with agents or with several sources has."""
    has_turns = recipe.turns.is_on()
    measures: list[Measure] = []
    if has_turns:
        measures.append(functools.partial(turn_metrics, max_turns=recipe.turns.max_turns))
    if recipe.agent.is_on():
        measures.append(agent_calls)
    if len(recipe.data.train_sources()) > 1:
        measures.append(functools.partial(source_metrics, has_turns=has_turns))
    return measures


@dataclass(frozen=True)
class BatchColumns:
    """One per run whose groups are generated."""

    queue: ReplayQueue
    metrics: RunMetrics
    dropped_groups: DroppedGroups | None
    """None where groups are not graded."""
    others: Sequence[Measure] = ()

    def __call__(self, taken: list[Group], version: PolicyVersion) -> dict[str, Any]:
        """Columns of the batch that `version` trains; call it right after `taken` left the queue."""
        new = [group for group in taken if group.taken_version == version]
        if self.dropped_groups is not None:
            self.dropped_groups.taken(new, version + 1)
        for group in new:
            self.metrics.took(version - group.oldest_version())
        is_graded = self.dropped_groups is not None
        columns: dict[str, Any] = {
            **(group_metrics(new, self.queue.has_signal) if is_graded else length_metrics(new)),
            **length_bias(new, self.queue.live.values(), self.queue.pop_aborted_lengths()),
            **staleness_metrics(taken, self.queue),
        }
        for measure in self.others:
            columns.update(measure(new))
        return {**columns, "repeated_groups": len(taken) - len(new), "replay_ratio": len(taken) / len(new)}
