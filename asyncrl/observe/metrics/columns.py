"""Names of the columns of metrics.jsonl in every tracker and in Prometheus: group/name.

Owns the one mapping. A column that it does not know keeps its name, in the group `other`.
"""

import re
from collections.abc import Mapping
from typing import Any

from verifiers.verdict import Outcome

GROUPS = {
    "reward": (
        "reward_mean",
        "reward_jump",
        "reward_without_heldout",
        "correct_mean",
        "turn_credit_mean",
        "credited_share",
        "groups_zero_signal",
    ),
    "response": (
        "response_tokens_mean",
        "response_tokens_max",
        "cut_share",
        "run_on_p95",
        "reflection_words_mean",
        "reflection_words_share",
        "length_bias",
        "overtaken_groups",
        "overtaken_tokens_mean",
        "aborted_trajectories",
        "aborted_tokens_mean",
    ),
    "turns": (
        "turns_mean",
        "turns_max",
        "tool_use_share",
        "calls_mean",
        "call_error_share",
        "observed_tokens_mean",
        "tool_seconds_p50",
        "tool_seconds_p99",
        "max_turns_share",
        "environment_faults",
        "unknown_tool_calls",
        "empty_turns",
    ),
    "agents": (
        "agents_running",
        "agents_waiting",
        "agent_calls_mean",
        "agent_branches_mean",
        "agent_seconds_p50",
        "agent_seconds_p99",
        "agents_replied",
        "agents_refused",
        "agents_without_call",
        "agent_refused_calls",
        "agent_faults",
        "agent_restarts",
        "agents_late",
        "agent_abandoned_tokens",
    ),
    "rollout": (
        "rollout_tokens_per_second",
        "rollout_idle_share",
        "no_signal_token_share",
        "pilots_stopped",
        "pilots_stopped_share",
        "requests_per_server",
        "requests_together",
        "cache_held_share",
        "cache_expected_share",
        "retractions",
    ),
    "verifier": (
        "faults_retried",
        "verifier_seconds_p50",
        "verifier_seconds_p99",
        "verifier_queue_seconds_total",
        "verifier_killed_total",
        "verifier_cached_total",
        "verifier_fast_total",
        "judge_requests_total",
        "judge_prompt_tokens_total",
        "judge_completion_tokens_total",
        "judge_unreadable_total",
        "judge_request_seconds_total",
        "fallback_reward_share",
        "identical_reward_share",
        "most_common_answer_share",
    ),
    "train": (
        "loss",
        "perplexity",
        "dpo_accuracy",
        "dpo_margin",
        "dpo_chosen_reward",
        "dpo_rejected_reward",
        "heldout_dpo_accuracy",
        "heldout_dpo_margin",
        "heldout_dpo_accuracy_at_start",
        "heldout_dpo_margin_at_start",
        "heldout_loss",
        "heldout_perplexity",
        "heldout_loss_at_start",
        "heldout_perplexity_at_start",
        "entropy",
        "entropy_coefficient",
        "grad_norm",
        "gradient_share_likely_positive",
        "gradient_share_likely_negative",
        "gradient_share_unlikely_positive",
        "gradient_share_unlikely_negative",
        "token_share_likely_positive",
        "token_share_likely_negative",
        "token_share_unlikely_positive",
        "token_share_unlikely_negative",
        "expert_load_max",
        "busiest_expert_share",
        "idle_expert_share",
        "spike_norm",
        "spike_times",
        "spike_share",
        "learning_rate",
        "learning_rate_scale",
        "policy_kl",
        "reference_version",
        "num_sequences",
        "num_tokens",
        "num_packed_tokens",
        "nonfinite_tokens",
        "surviving_tokens",
        "held_back_tokens",
        "optimizer_steps",
        "skipped_steps",
        "loss_scale",
        "tokens_per_second",
        "model_flops",
        "mfu",
        "repeated_groups",
        "replay_ratio",
    ),
    "weights": (
        "mean_importance_ratio",
        "max_importance_ratio",
        "capped_share",
        "masked_share",
        "left_out_share",
        "masked_cut_off_tokens",
        "masked_cut_off_share",
        "clipped_share",
        "trust_region_share",
        "weight_effective_share",
        "token_effective_share",
        "sequence_effective_share",
        "weight_mean",
        "chi_square",
        "sequence_chi_square",
        "sequence_log_ratio_mean",
        "sequence_log_ratio_absolute_mean",
        "sequence_log_ratio_max",
    ),
    "staleness": ("too_stale_tokens",),
    "mismatch": ("continued_share", "continued_kl", "routing_mismatch"),
    "critic": ("explained_variance",),
    "teacher": (
        "teacher_kl",
        "teacher_forward_kl",
        "teacher_top_mass",
        "teacher_scored_total",
        "teacher_refused_total",
        "teacher_restarts_total",
        "teacher_seconds_total",
    ),
    "time": (
        "step_seconds",
        "wait_seconds",
        "train_seconds",
        "drain_seconds",
        "publish_seconds",
        "install_seconds",
        "checkpoint_seconds",
        "trainer_idle_share",
    ),
    "memory": (
        "controller_memory_gib",
        "trainer_memory_gib",
        "server_memory_gib",
        "memory_limit_share",
        "memory_stall_share",
    ),
}
"""Group -> columns of a step. A column that begins with its group's name drops it."""
PREFIXES = {
    "reward_mean_by_outcome_": "reward/mean_by_outcome/",
    "score_mean_by_part_": "reward/score_mean_by_part/",
    "response_tokens_mean_by_outcome_": "response/tokens_mean_by_outcome/",
    "reflection_words_mean_by_outcome_": "response/reflection_words_mean_by_outcome/",
    "reflection_words_mean_by_word_": "response/reflection_words_mean_by_word/",
    "correct_mean_by_source_": "reward/correct_mean_by_source/",
    "groups_share_by_source_": "rollout/groups_share_by_source/",
    "pilots_stopped_share_by_source_": "rollout/pilots_stopped_share_by_source/",
    "tool_use_share_by_source_": "turns/tool_use_share_by_source/",
    "outcomes_": "verifier/outcomes/",
    "staleness_": "staleness/",
    "mismatch_": "mismatch/",
    "value_": "critic/value_",
    "critic_": "critic/",
}
"""Prefix of columns that come in families -> what replaces it."""
BY_VERIFIER = "outcomes_by_verifier_"
NO_VALUES = ("kind", "time_seconds", "step")
"""Columns that say where a value belongs."""

_KNOWN = {
    column: f"{group}/{column.removeprefix(f'{group}_')}"
    for group, columns in GROUPS.items()
    for column in columns
}
_REFUSED = re.compile(r"[^A-Za-z0-9_.-]+")
"""Characters that one tracker or another refuses."""


def values_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Name -> value of all numbers in a step, evaluation or benchmark. Text, lists and null have none."""
    match row["kind"]:
        case "step":
            name_of = step_name
        case "eval":
            name_of = _evaluation_name
        case _:
            name_of = f"benchmark/{_plain(str(row['benchmark']))}/{{}}".format
    return {
        name_of(column): float(value)
        for column, value in row.items()
        if column not in NO_VALUES and isinstance(value, (int, float))
    }


def step_name(column: str) -> str:
    """The name of a step's column."""
    if (known := _KNOWN.get(column)) is not None:
        return known
    if column.startswith(BY_VERIFIER):
        return f"verifier/outcomes_by_verifier/{_verifier_and_outcome(column.removeprefix(BY_VERIFIER))}"
    for prefix, name in PREFIXES.items():
        if column.startswith(prefix):
            return name + _plain(column.removeprefix(prefix))
    return f"other/{_plain(column)}"


def _evaluation_name(column: str) -> str:
    return f"eval/{_plain(column)}"


def _verifier_and_outcome(text: str) -> str:
    """ "NAME_OUTCOME", where both may have underscores, as "NAME/OUTCOME"."""
    outcome = next((outcome.value for outcome in Outcome if text.endswith(f"_{outcome.value}")), None)
    return _plain(text) if outcome is None else f"{_plain(text.removesuffix(f'_{outcome}'))}/{outcome}"


def _plain(text: str) -> str:
    """A name that all trackers take, such as "sevens.py-Sevens" for "./sevens.py:Sevens"."""
    return _REFUSED.sub("-", text).strip("-.") or "-"
