"""The row of a training step: what was taken, how it was trained, and which side was idle.

A row is opened by the reply to a take and closed by the trainer's metrics in the next take. The typed
dictionaries here are its columns as metrics.jsonl names them; the trainer adds its own.
"""

import hashlib
import math
import statistics
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from asyncrl.algorithms.branches import mean_reward
from asyncrl.journal.counters import DROPPED, GENERATED
from asyncrl.loops.waits import now_seconds
from asyncrl.observe.metrics.observer import Observer
from asyncrl.observe.metrics.turn_metrics import AgentMeter, PilotMeter, mean_correctness
from asyncrl.records import (
    Batch,
    DropReason,
    Finish,
    GradientSpike,
    PolicyVersion,
    Score,
    ScoredSequence,
    Trajectory,
    root_id,
)
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.teacher import Teacher
from asyncrl.serving.fleet import Fleet
from asyncrl.turns.conversation import Conversations
from asyncrl.wire.messages import TakeRequest
from verifiers import monitor
from verifiers.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Reading:
    """Meters of the rollout side at one moment."""

    time_seconds: float
    """Monotonic."""
    tokens_generated: int
    tokens_without_signal: int
    """Tokens of groups that were dropped because all their advantages would have been 0."""
    server_busy_seconds: float
    """Summed over servers."""
    num_servers: int
    stream_seconds: float
    """Requests running times seconds, summed over servers."""
    squared_stream_seconds: float
    """Requests running on a server, squared, times seconds, summed over servers."""
    cache_held_share: float
    """This and the next one as `Speed` has them."""
    cache_expected_share: float
    retractions: int
    """Summed over servers."""


@dataclass(frozen=True, slots=True)
class Meters:
    """Where readings come from."""

    queue: ReplayQueue
    fleet: Fleet

    def read(self) -> Reading:
        counters = self.queue.counters
        return Reading(
            now_seconds(),
            counters.get(GENERATED, 0),
            counters.get(DROPPED + DropReason.NO_SIGNAL, 0),
            self.fleet.utilization.busy_seconds(),
            len(self.fleet.members.servers),
            *self.fleet.utilization.stream_seconds(),
            *self.fleet.utilization.cache_shares(),
            self.fleet.utilization.num_retractions(),
        )


class Speed(TypedDict):
    """Speed of the rollout side, from one take to the next."""

    step_seconds: float
    rollout_tokens_per_second: float
    no_signal_token_share: float
    rollout_idle_share: float
    requests_per_server: float
    requests_together: float
    cache_held_share: float
    cache_expected_share: float
    retractions: int


class Retried(TypedDict):
    faults_retried: int


class Trained(TypedDict):
    """Contents of the batch, repeated groups included."""

    reward_mean: float | None
    response_tokens_mean: float | None
    response_tokens_max: int
    num_sequences: int


class Staleness(TypedDict):
    """Staleness of groups' oldest tokens, in versions, right after a batch left the queue."""

    staleness_at_admission: int
    staleness_in_flight: int
    staleness_at_take: int


class Verdicts(TypedDict):
    """Verdicts on the sampled responses in a batch's new groups; None where nothing was graded."""

    correct_mean: float | None
    cut_share: float | None
    run_on_p95: float | None
    turn_credit_mean: float | None
    credited_share: float | None
    groups_zero_signal: int
    outcomes: dict[str, int]
    outcomes_by_verifier: dict[str, dict[str, int]]
    verifier_seconds_p50: float | None
    verifier_seconds_p99: float | None
    fallback_reward_share: float
    identical_reward_share: float
    most_common_answer_share: float
    reward_mean_by_outcome: dict[str, float]
    score_mean_by_part: dict[str, float]
    response_tokens_mean_by_outcome: dict[str, float]


class Lengths(TypedDict):
    """Lengths of the responses in a batch's new groups, where no verifier judges them."""

    cut_share: float | None


class Spike(TypedDict):
    """A gradient whose norm is far above the usual; other steps lack these."""

    spike_norm: float
    spike_times: float
    spike_share: float
    spike_row: str


class Trends(TypedDict):
    reward_jump: float
    reward_without_heldout: float


VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
"""Parameters with a row per token."""
VECTORS = ("norm.weight", ".bias")
"""How names of parameters end that are one row."""


def rollout_metrics(before: Reading, after: Reading) -> Speed:
    seconds = max(after.time_seconds - before.time_seconds, 1e-9)
    tokens = after.tokens_generated - before.tokens_generated
    filtered = after.tokens_without_signal - before.tokens_without_signal
    num_servers = max(after.num_servers, 1)
    busy = (after.server_busy_seconds - before.server_busy_seconds) / num_servers
    streamed = after.stream_seconds - before.stream_seconds
    squared = after.squared_stream_seconds - before.squared_stream_seconds
    return {
        "step_seconds": seconds,
        "rollout_tokens_per_second": tokens / seconds,
        "no_signal_token_share": filtered / tokens if tokens else 0.0,
        "rollout_idle_share": min(1.0, max(0.0, 1.0 - busy / seconds)),
        "requests_per_server": streamed / seconds / num_servers,
        "requests_together": squared / streamed if streamed > 0 else 0.0,
        "cache_held_share": after.cache_held_share,
        "cache_expected_share": after.cache_expected_share,
        "retractions": after.retractions - before.retractions,
    }


def batch_metrics(batch: Batch) -> Trained:
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


def staleness_metrics(taken: Sequence[Group], queue: ReplayQueue) -> Staleness:
    """Right after `taken` left the queue."""
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


def group_metrics(groups: Sequence[Group], has_signal: Callable[[Group], bool]) -> Verdicts:
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


def length_metrics(groups: Sequence[Group]) -> Lengths:
    cut = [t.finish is Finish.LENGTH for group in groups for t, _ in group.graded_samples()]
    return {"cut_share": statistics.fmean(cut) if cut else None}


def spike_metrics(spike: GradientSpike, piece: Callable[[int], str]) -> Spike:
    """`piece` is the text of a token: rows of the embedding and of the output layer are tokens."""
    place = spike.parameter
    if not place.endswith(VECTORS):
        place = f"row {spike.row} of {place}"
    if spike.parameter in VOCABULARY:
        place += f", the token {piece(spike.row) or 'that the tokenizer lacks'}"
    return {
        "spike_norm": spike.norm,
        "spike_times": spike.times,
        "spike_share": spike.share,
        "spike_row": place,
    }


def trend_metrics(rewards: Sequence[float], heldout: Sequence[tuple[int, float]]) -> Trends:
    """`rewards` are per step, `heldout` is (step, accuracy)."""
    return {
        "reward_jump": monitor.reward_jump(rewards),
        "reward_without_heldout": monitor.reward_without_heldout(rewards, heldout),
    }


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


class StepReport:
    """Hears of each take and of each batch given; tells the observer once per step."""

    def __init__(
        self,
        observer: Observer,
        meters: Meters,
        grader: Grader,
        accuracies: Sequence[tuple[PolicyVersion, float]],
        piece: Callable[[int], str] = str,
        conversations: Conversations | None = None,
        agents: AgentMeter | None = None,
        pilots: PilotMeter | None = None,
        columns: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        """`accuracies` grows with the run: (version, held-out accuracy) of each evaluation. `piece` is the
        text of a token. `conversations` are those of rollouts, where trajectories have turns; `agents` meters
        those that make trajectories. `pilots` counts those of adaptive groups. `columns` keeps those of a row
        that mean something in the stage; None: all. `teacher` counts what it scores."""
        self._observer = observer
        self._meters = meters
        self._grader = grader
        self._accuracies = accuracies
        self._piece = piece
        self._conversations = conversations
        self._agents = agents
        self._pilots = pilots
        self._columns = columns or (lambda row: row)
        self._teacher = teacher
        self._open: tuple[PolicyVersion, Reading] | None = None
        """The version that asked for a batch last, and the meters at that moment."""
        self._batch: dict[str, Any] = {}
        self._num_retried = 0
        """As the grader counted when the last step ended."""
        self._rewards: list[float] = []

    def given(self, batch: dict[str, Any]) -> None:
        """Takes the known metrics of the batch that the trainer has now."""
        self._batch = batch

    def asked(self, request: TakeRequest, responses: Mapping[str, Any] | None = None) -> bool:
        """The trainer asks for the batch of `request.version`, and so has finished the step before, whose
        `responses` have these columns. Whether that step is a new one."""
        before, now = self._open, self._meters.read()
        if before is not None and before[0] == request.version:
            return False
        self._open = (request.version, now)
        if before is None or request.step_metrics is None or before[0] != request.version - 1:
            return False
        speed = rollout_metrics(before[1], now)
        waited = sum(request.step_metrics.get(name, 0.0) for name in ("wait_seconds", "drain_seconds"))
        idle = min(1.0, waited / speed["step_seconds"])
        trained = {
            name: value if math.isfinite(value) else None for name, value in request.step_metrics.items()
        }
        self._rewards.append(self._batch.get("correct_mean") or 0.0)
        self._observer.step(
            self._columns(
                {
                    **(responses or {}),
                    **self._batch,
                    **trained,
                    **(spike_metrics(request.spike, self._piece) if request.spike is not None else {}),
                    **speed,
                    **self._grader.pool_metrics(),
                    **(self._teacher.metrics() if self._teacher is not None else {}),
                    **self._retried(),
                    **(self._conversations.tally.row() if self._conversations is not None else {}),
                    **(self._agents.read() if self._agents is not None else {}),
                    **(self._pilots.read() if self._pilots is not None else {}),
                    **trend_metrics(self._rewards, self._accuracies),
                    "trainer_idle_share": idle,
                    "step": request.version,
                }
            )
        )
        return True

    def _retried(self) -> Retried:
        before, self._num_retried = self._num_retried, self._grader.num_retried
        return {"faults_retried": self._num_retried - before}
