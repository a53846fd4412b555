"""The columns of a step that mean something where rows are learned: nothing is generated, graded or stale."""

from typing import Any

_OF_THE_CONTROLLER = (
    *("rollout_", "requests_", "cache_", "verifier_", "judge_", "reward_", "reflection_words", "pilots_"),
    *("response_tokens_mean_by_outcome", "no_signal_token_share", "retractions", "faults_retried"),
    *("outcomes", "correct_", "groups_"),
)
"""How columns begin that speak of servers, verifiers and rewards."""


def row_columns(row: dict[str, Any]) -> dict[str, Any]:
    """A step's columns without those."""
    return {name: value for name, value in row.items() if not name.startswith(_OF_THE_CONTROLLER)}
