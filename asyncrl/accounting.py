"""The numbers of one optimizer step, put together from both sides: what was taken, how it was trained, who
idled.

Opened at the reply to a take, closed by the trainer's metrics in the next take. Owns no state of the run.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.replay.group import Group
from asyncrl.types import Batch


@dataclass(frozen=True, slots=True)
class Reading:
    """Meters of the rollout side at one moment."""

    time_seconds: float
    """Monotonic."""
    tokens_generated: int
    server_busy_seconds: float
    """Summed over servers."""
    num_servers: int


def rollout_metrics(before: Reading, after: Reading) -> dict[str, float]:
    """Speed and idle share of the rollout side between two readings."""
    seconds = max(after.time_seconds - before.time_seconds, 1e-9)
    busy = (after.server_busy_seconds - before.server_busy_seconds) / max(after.num_servers, 1)
    return {
        "step_seconds": seconds,
        "rollout_tokens_per_second": (after.tokens_generated - before.tokens_generated) / seconds,
        "rollout_idle_share": min(1.0, max(0.0, 1.0 - busy / seconds)),
    }


def batch_metrics(batch: Batch) -> dict[str, Any]:
    """Reward and length of what one step trains on."""
    rewards = [sequence.reward for sequence in batch.sequences]
    lengths = [len(sequence.response_tokens) for sequence in batch.sequences]
    return {
        "reward_mean": statistics.fmean(rewards) if rewards else None,
        "response_tokens_mean": statistics.fmean(lengths) if lengths else None,
        "response_tokens_max": max(lengths, default=0),
        "num_sequences": len(rewards),
    }


def group_metrics(groups: Sequence[Group]) -> dict[str, Any]:
    """Verdicts behind a batch: outcomes, groups without a signal, verifier latency."""
    scores = [score for group in groups for score in group.scores.values()]
    correct = [score.correctness for score in scores if score.correctness is not None]
    seconds = sorted(score.seconds for score in scores)
    return {
        "correct_mean": statistics.fmean(correct) if correct else None,
        "groups_zero_signal": sum(_has_no_signal(group) for group in groups),
        "outcomes": dict(Counter(score.outcome for score in scores)),
        "verifier_seconds_p99": seconds[int(0.99 * (len(seconds) - 1))] if seconds else None,
    }


def _has_no_signal(group: Group) -> bool:
    """By raw correctness: shaping breaks ties that mean nothing."""
    correct = {s.correctness for s in group.scores.values() if s.correctness is not None}
    return len(correct) < 2
