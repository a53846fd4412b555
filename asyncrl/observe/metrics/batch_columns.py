"""Columns of a step that are measured of its groups and sequences as they leave the queue, before they are
trained. catalog.md explains each column.
"""

import functools
import hashlib
import math
import statistics
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.algorithms.turns import mean_reward
from asyncrl.observe.alarms.no_correct import DroppedGroups
from asyncrl.observe.metrics.prometheus import RunMetrics
from asyncrl.observe.metrics.turn_metrics import agent_calls, mean_correctness, source_metrics, turn_metrics
from asyncrl.recipe import Recipe
from asyncrl.records import Batch, Finish, PolicyVersion, Score, ScoredSequence, Trajectory, root_id
from asyncrl.replay.group import Group
from asyncrl.replay.policy import length_bias
from asyncrl.replay.queue import ReplayQueue
from asyncrl.run.metrics_file import Row
from verifiers import monitor
from verifiers.verdict import Outcome, Verdict

_OF_VERDICTS = (
    *("verifier_", "judge_", "reward_", "pilots_", "response_tokens_mean_by_outcome"),
    *("no_signal_token_share", "faults_retried", "outcomes", "correct_", "groups_"),
)
"""How columns begin that speak of verifiers and rewards."""
_OF_THE_CONTROLLER = (*_OF_VERDICTS, "rollout_", "requests_", "cache_", "reflection_words", "retractions")
"""How columns begin that speak of servers, verifiers and rewards."""


def row_columns(row: Row) -> Row:
    """A step's columns without those of servers, verifiers and rewards."""
    return {name: value for name, value in row.items() if not name.startswith(_OF_THE_CONTROLLER)}


def unjudged_columns(row: Row) -> Row:
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
        columns: Row = {
            **(group_metrics(new, self.queue.has_signal) if is_graded else length_metrics(new)),
            **length_bias(new, self.queue.live.values(), self.queue.pop_aborted_lengths()),
            **staleness_metrics(taken, self.queue),
        }
        for measure in self.others:
            columns.update(measure(new))
        return {**columns, "repeated_groups": len(taken) - len(new), "replay_ratio": len(taken) / len(new)}


def batch_metrics(batch: Batch) -> Row:
    """Contents of the batch, repeated groups included."""
    by_trajectory: dict[str, list[ScoredSequence]] = defaultdict(list)
    for sequence in batch.sequences:
        by_trajectory[root_id(sequence.sequence_id)].append(sequence)
    # As `branch_verdicts.joint_score`: the branches of one are judged each.
    rewards = [mean_reward([line.reward for line in lines]) for lines in by_trajectory.values()]
    lengths = [sum(line.num_sampled() for line in lines) for lines in by_trajectory.values()]
    return {
        "reward_mean": statistics.fmean(rewards) if rewards else None,
        "response_tokens_mean": statistics.fmean(lengths) if lengths else None,
        "response_tokens_max": max(lengths, default=0),
        "num_sequences": len(rewards),
    }


def staleness_metrics(taken: Sequence[Group], queue: ReplayQueue) -> Row:
    """Staleness of groups' oldest tokens, in versions; call it right after `taken` left the queue."""
    next_step = queue.num_steps_taken
    counted = queue.num_admitted - queue.num_dropped
    youngest = max((group.admitted_version for group in queue.live.values()), default=next_step)
    turn = max(next_step, (counted - 1) // queue.settings.groups_per_batch)
    in_flight = [g.oldest_version() for g in queue.live.values() if g.num_tokens()]
    return {
        "staleness_at_admission": turn - youngest,
        "staleness_in_flight": next_step - min(in_flight, default=next_step),
        "staleness_at_take": next_step - 1 - min(group.oldest_version() for group in taken),
    }


def group_metrics(groups: Sequence[Group], has_signal: Callable[[Group], bool]) -> Row:
    """Verdicts on the sampled responses in a batch's new groups; None where nothing was graded."""
    # Greedy baselines are no samples: their verdicts would lift the accuracy of the policy that is trained.
    scores = [score for group in groups for score in group.sampled_scores().values()]
    verdicts = [_verdict(score) for score in scores]
    sampled = [pair for group in groups for pair in group.graded_samples()]
    graded = [(_verdict(score), _fingerprint(trajectory)) for trajectory, score in sampled]
    seconds = sorted(score.seconds for score in scores)
    cut = [trajectory.finish is Finish.LENGTH for trajectory, _ in sampled]
    credited = [(t, score.credits) for t, score in sampled if score.reward is not None]
    credits = [reward for _, own in credited for _, reward in own]
    turns = [len(trajectory.turn_lengths()) for trajectory, _ in credited]
    are_credited = [bool(own) for _, own in credited]
    rewards = [(score.outcome, score.reward) for _, score in sampled if score.reward is not None]
    lengths = [(score.outcome, trajectory.num_sampled_in_all()) for trajectory, score in sampled]
    return {
        "correct_mean": mean_correctness(groups),
        "cut_share": statistics.fmean(cut) if cut else None,
        "run_on_p95": _run_on_p95([trajectory for trajectory, _ in sampled]),
        "turn_credit_mean": sum(credits) / sum(turns) if sum(turns) else None,
        "credited_share": statistics.fmean(are_credited) if are_credited else None,
        "groups_zero_signal": sum(not has_signal(group) for group in groups),
        "outcomes": monitor.count_outcomes(verdicts),
        "outcomes_by_verifier": _outcomes_by_verifier(groups),
        "verifier_seconds_p50": seconds[len(seconds) // 2] if seconds else None,
        "verifier_seconds_p99": seconds[int(0.99 * (len(seconds) - 1))] if seconds else None,
        "fallback_reward_share": monitor.fallback_share(graded),
        "identical_reward_share": monitor.identical_response_share(graded),
        "most_common_answer_share": monitor.most_common_answer_share(verdicts),
        "reward_mean_by_outcome": _mean_by_name(rewards),
        "score_mean_by_part": _mean_by_name([pair for score in scores for pair in score.scores.items()]),
        "response_tokens_mean_by_outcome": _mean_by_name(lengths),
    }


def length_metrics(groups: Sequence[Group]) -> Row:
    """Lengths of the responses in a batch's new groups, where no verifier judges them."""
    cut = [t.finish is Finish.LENGTH for group in groups for t, _ in group.graded_samples()]
    return {"cut_share": statistics.fmean(cut) if cut else None}


def _run_on_p95(trajectories: Sequence[Trajectory]) -> float | None:
    ended = [
        t.sampled()[-1].behavior_logprobs for t in trajectories if t.finish is Finish.STOP and t.sampled()
    ]
    # expm1 is exact near p = 1, where 1 - exp(log p) would round.
    going_on = sorted(-math.expm1(min(last, 0.0)) for *_, last in ended if math.isfinite(last))
    return going_on[int(0.95 * (len(going_on) - 1))] if going_on else None


def _mean_by_name(found: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Mean of the values of each name there was."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, value in found:
        by_name[name].append(value)
    return {name: statistics.fmean(values) for name, values in by_name.items()}


def _outcomes_by_verifier(groups: Sequence[Group]) -> dict[str, dict[str, int]]:
    by_name: dict[str, list[Verdict]] = defaultdict(list)
    for group in groups:
        by_name[group.task.verifier.name].extend(map(_verdict, group.sampled_scores().values()))
    return {name: monitor.count_outcomes(verdicts) for name, verdicts in by_name.items()}


def _fingerprint(trajectory: Trajectory) -> str:
    """Equal for equal responses."""
    return hashlib.sha256(
        array("q", [token for line in trajectory.lines() for token in line.response_tokens()])
    ).hexdigest()


def _verdict(score: Score) -> Verdict:
    return Verdict(Outcome(score.outcome), score.correctness, extracted=score.extracted, method=score.method)
