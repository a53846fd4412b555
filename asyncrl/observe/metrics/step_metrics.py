"""The row of a training step: how it was trained, which side was idle, and who hears of it.

A row is opened by the reply to a take and closed by the trainer's metrics in the next take. Columns of its
batch come from batch_columns.py. Columns of its responses come from the journal while the trainer has them,
so that a batch that is given again after a restart has them too, and replay.keep_steps may remove the texts.
catalog.md explains each column.
"""

import asyncio
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from asyncrl.journal.connection import DROPPED, GENERATED
from asyncrl.journal.responses import read_step_responses
from asyncrl.journal.writer import Journal
from asyncrl.loops import TrainersWait, Waits, end_tasks, now_seconds
from asyncrl.observe.alarms.rule import Alarm
from asyncrl.observe.metrics.turn_metrics import AgentMeter, PilotMeter
from asyncrl.records import DropReason, GradientSpike, PolicyVersion
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.reflection import ReflectionWords
from asyncrl.rollout.teacher import Teacher
from asyncrl.run.metrics_file import Row
from asyncrl.serving.fleet import Fleet
from asyncrl.turns.conversation import Conversations
from asyncrl.wire.messages import TakeRequest
from verifiers import monitor


class Observer(Protocol):
    """The seam between a run and the receivers of its numbers: the terminal, the metrics file. Anything else
    that a person should read meanwhile is logged, as a warning."""

    def step(self, row: Row) -> None:
        """A training step ended; `row` as in metrics.jsonl."""
        ...

    def evaluation(self, row: Row) -> None:
        """A held-out evaluation ended."""
        ...

    def benchmark(self, row: Row) -> None:
        """A benchmark was measured, before or after training."""
        ...

    def dropped(self, row: Row) -> None:
        """Many groups were dropped while a step waits for its batch; counts as `DroppedGroups` has them."""
        ...

    def alarm(self, alarm: Alarm) -> None:
        """An alarm begins or ends; the receiver leaves out what is known."""
        ...


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
    """This and the next one as catalog.md has them."""
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


VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
"""Parameters with a row per token."""
VECTORS = ("norm.weight", ".bias")
"""How names of parameters end that are one row."""


def rollout_metrics(before: Reading, after: Reading) -> Row:
    """Speed of the rollout side, from one take to the next."""
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


def spike_metrics(spike: GradientSpike, piece: Callable[[int], str]) -> Row:
    """A gradient whose norm is far above the usual; other steps lack these columns.

    `piece` is the text of a token: rows of the embedding and of the output layer are tokens."""
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


def trend_metrics(rewards: Sequence[float], heldout: Sequence[tuple[int, float]]) -> Row:
    """`rewards` are per step, `heldout` is (step, accuracy)."""
    return {
        "reward_jump": monitor.reward_jump(rewards),
        "reward_without_heldout": monitor.reward_without_heldout(rewards, heldout),
    }


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
                    "faults_retried": self._grader.num_retried - self._num_retried,
                    **(self._conversations.tally.row() if self._conversations is not None else {}),
                    **(self._agents.read() if self._agents is not None else {}),
                    **(self._pilots.read() if self._pilots is not None else {}),
                    **trend_metrics(self._rewards, self._accuracies),
                    "trainer_idle_share": idle,
                    "step": request.version,
                }
            )
        )
        self._num_retried = self._grader.num_retried
        return True


@dataclass(eq=False)
class StepResponses:
    """One per run."""

    journal: Journal
    words: ReflectionWords | None
    num_samples: int
    """Sampled trajectories of a whole group."""
    waits: Waits
    _reading: "tuple[PolicyVersion, asyncio.Task[Row]] | None" = None

    def begin(self, version: PolicyVersion) -> None:
        """The trainer has the batch of `version`, which is on disk."""
        if self._reading is not None and self._reading[0] == version:
            return
        if self._reading is not None:
            self._reading[1].cancel()
        task = asyncio.create_task(self._read(version), name=f"responses of step {version + 1}")
        self._reading = version, task

    async def columns(self, version: PolicyVersion) -> Mapping[str, Any]:
        """Columns of the step that trains `version`; none where this process gave it no batch."""
        if self._reading is None or self._reading[0] != version:
            return {}
        with self.waits.waiting(TrainersWait.TAKE, "the texts of the last step"):
            return dict(await asyncio.shield(self._reading[1]))

    async def close(self) -> None:
        if self._reading is not None:
            await end_tasks(self._reading[1])

    async def _read(self, version: PolicyVersion) -> Row:
        """Columns of graded responses of the batch's new groups; means are None where there was none.

        Reflection words have columns only where view.reflection_words names any."""
        lengths: defaultdict[str, list[int]] = defaultdict(list)
        counts: defaultdict[str, list[int]] = defaultdict(list)
        by_word: Counter[str] = Counter()
        with closing(read_step_responses(self.journal, version, num_samples=self.num_samples)) as groups:
            for group in groups:
                for response in group:
                    lengths[response.outcome].append(response.num_tokens)
                    if self.words is not None and response.text is not None:
                        found = self.words.count(response.text)
                        counts[response.outcome].append(sum(found))
                        by_word.update(dict(zip(self.words.words, found, strict=True)))
                # Streams are read in between.
                await asyncio.sleep(0)
        columns: Row = {"response_tokens_mean_by_outcome": _means(lengths)}
        if self.words is None:
            return columns
        each = [count for found in counts.values() for count in found]
        return {
            **columns,
            "reflection_words_mean": statistics.fmean(each) if each else None,
            "reflection_words_share": statistics.fmean(map(bool, each)) if each else None,
            "reflection_words_mean_by_outcome": _means(counts),
            "reflection_words_mean_by_word": (
                {word: by_word[word] / len(each) for word in self.words.words} if each else {}
            ),
        }


def _means(values: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {name: statistics.fmean(each) for name, each in sorted(values.items())}
