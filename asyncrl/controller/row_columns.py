"""The columns of a step that mean something where rows are learned, in which nothing is generated, graded or
stale; and where a teacher alone says what a response is worth, in which nothing is graded."""

from typing import Any

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
