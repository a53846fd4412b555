"""A run as a discrete-event simulation: feed, servers, queue and trainer, as the controller connects them.

The trainer is a generator that yields how long it is busy, or that it waits; everything else reacts to the
end of a request, to verdicts and to failures. No clock is read: equal seeds give equal runs.

Left out: evaluations, rollout.tokens_per_round, serving.hedge_seconds, and the trainer's own skew over ranks.
"""

import heapq
import itertools
import random
from collections.abc import Generator, Iterator
from enum import Enum
from typing import Any, NamedTuple

from asyncrl.planning.lengths import Lengths
from asyncrl.planning.outcome import Outcome, PlannedStep
from asyncrl.planning.planned_fleet import PlannedFleet
from asyncrl.planning.planned_queue import PlannedGroup, PlannedQueue
from asyncrl.planning.settings import PlannedRun, training_tokens


class Wait(Enum):
    """The trainer's reason to wait."""

    BATCH = "a batch"
    IDLE_SERVERS = "idle servers"


class _Happening(NamedTuple):
    """An event that is not the end of a request."""

    seconds: float
    number: int
    kind: str
    subject: Any


class _TrainerDied(Exception):
    """The trainer died, at the moment that was drawn for it."""


def simulate(run: PlannedRun, lengths: Lengths, *, seed: int = 0) -> Outcome:
    """Simulates all steps of the run."""
    return Simulation(run, lengths, seed=seed).finish()


class Simulation:
    """One run; `finish` once."""

    def __init__(self, run: PlannedRun, lengths: Lengths, *, seed: int) -> None:
        self.run = run
        self.lengths = lengths
        self.chance = random.Random(seed)
        self._lengths_of = lengths.begin(self.chance)
        self.now = 0.0
        self.queue = PlannedQueue(run.queue, oversampling=run.oversampling)
        self.fleet = PlannedFleet(run)
        self.outcome = Outcome(run.num_servers, run.max_running_requests)
        self.outcome.first_steady, self.outcome.last_steady = steady_range(run)
        self._happenings: list[_Happening] = []
        self._numbers = itertools.count()
        self._homeless: list[tuple[PlannedGroup, list[float]]] = []
        """Groups whose server failed, with the tokens that their requests lack."""
        self._is_admitting = False
        """The controller is busy with a new group, before the next."""
        self._is_paused = False
        self._is_draining = False
        self._is_training = False
        self._is_catching_up = False
        self._version = 0
        self._training_tokens: list[float] = []
        """Tokens of each batch taken, for a trainer that repeats it."""
        self._trainer_dies = self._draw(run.failures.trainer_seconds_between)
        self._trainer = self._train()
        self._waits_for: Wait | None = None
        self._is_over = False

    def finish(self) -> Outcome:
        self.fleet.install(0.0, 0)
        if self.run.failures.server_seconds_between is not None:
            for index in range(self.run.num_servers):
                self._plan(self._draw(self.run.failures.server_seconds_between), "server fails", index)
        self._resume_trainer()
        while not self._is_over:
            end = self.fleet.next_end()
            if self._happenings and self._happenings[0].seconds <= end:
                happening = heapq.heappop(self._happenings)
                self.now = happening.seconds
                self._happen(happening.kind, happening.subject)
            else:
                assert end < float("inf"), "nothing is left that could happen"
                # A float may round it to just before now.
                self.now = max(self.now, end)
                for group in self.fleet.pop_ended(self.now):
                    self._end_request(group)
                self._feed()
            self.outcome.num_events += 1
            if self._waits_for is not None:
                self._wake_trainer()
        return self.outcome

    # The rollout side

    def _feed(self) -> None:
        """Groups that lost their server first, then new ones while bound and servers allow."""
        queue = self.queue
        if queue.num_admitted - queue.num_dropped >= queue.most_admitted and not self._homeless:
            return
        if self._is_catching_up or queue.is_over():
            return
        while self._homeless and (place := self.fleet.pick(len(self._homeless[0][1]))) is not None:
            group, left = self._homeless.pop(0)
            self.fleet.begin(self.now, place, group, left)
        size = self.run.queue.samples_per_group + self.run.queue.has_greedy
        may_admit = not (self._is_draining or self._is_admitting)
        while may_admit and self.queue.can_admit(num_waiting=len(self._homeless)):
            place = self.fleet.pick(size)
            if place is None:
                return
            group = self.queue.admit()
            drawn = self._lengths_of(group.admitted_version, size)
            self.fleet.begin(self.now, place, group, drawn)
            if self.run.costs.admit_seconds:
                self._is_admitting, may_admit = True, False
                self._plan(self.now + self.run.costs.admit_seconds, "admitted")

    def _end_request(self, group: PlannedGroup) -> None:
        group.num_open -= 1
        if not group.num_open:
            if self.run.costs.verify_seconds:
                self._plan(self.now + self.run.costs.verify_seconds, "verdicts", group)
            else:
                self._judge(group)

    def _judge(self, group: PlannedGroup) -> None:
        group.has_signal = self.chance.random() >= self.run.no_signal_share
        if group.has_signal:
            self.queue.make_ready(group)
        else:
            self.outcome.tokens_dropped += group.num_tokens()
            self.queue.drop(group)
        if self.run.oversampling is not None:
            self._set_speed()

    def _set_speed(self) -> None:
        """Sets the speed of all servers, by what holds them up."""
        is_held = self._is_paused or self._is_catching_up or self.queue.is_over()
        shared = self.run.costs.decode_speed_during_training if self._is_training else 1.0
        self.fleet.set_speed(self.now, 0.0 if is_held else shared)

    def _happen(self, kind: str, subject: Any) -> None:
        match kind:
            case "trainer":
                self._resume_trainer()
            case "admitted":
                self._is_admitting = False
            case "verdicts":
                if subject.group_id in self.queue.live:
                    self._judge(subject)
            case "server fails":
                self.outcome.num_server_failures += 1
                self._homeless += self.fleet.fail(self.now, subject)
                self._plan(self.now + self.run.failures.server_restart_seconds, "server returns", subject)
            case "server returns":
                self.fleet.come_back(subject)
                after = self._draw(self.run.failures.server_seconds_between)
                self._plan(self.now + after, "server fails", subject)
        self._feed()

    def _plan(self, seconds: float, kind: str, subject: Any = None) -> None:
        heapq.heappush(self._happenings, _Happening(seconds, next(self._numbers), kind, subject))

    def _draw(self, mean: float | None) -> float:
        return float("inf") if mean is None else self.chance.expovariate(1.0 / mean)

    # The trainer

    def _wake_trainer(self) -> None:
        match self._waits_for:
            case Wait.BATCH if (
                self.queue.num_ready >= self.run.queue.groups_per_batch and self.queue.has_batch()
            ):
                self._resume_trainer()
            case Wait.IDLE_SERVERS if not self._homeless and not self.fleet.num_running:
                self._resume_trainer()

    def _resume_trainer(self) -> None:
        """Runs the trainer until it is busy or waits; one that could continue at once does."""
        self._waits_for = None
        try:
            needed = next(self._trainer)
        except StopIteration:
            self._is_over = True
            return
        if isinstance(needed, Wait):
            self._waits_for = needed
            self._feed()
            self._wake_trainer()
        else:
            self._plan(self.now + needed, "trainer")

    def _train(self) -> Iterator[float | Wait]:
        while self._version < self.run.queue.num_steps:
            yield from self._step()

    def _step(self) -> Iterator[float | Wait]:
        """Take, train, publish; a trainer that died repeats what its last checkpoint lacks."""
        asked, before = self.now, self.fleet.sums(self.now)
        self.queue.announce(self._version)
        self._is_draining = False
        self._feed()
        if not self._version and self.run.evaluates_first and self.fleet.num_running:
            yield Wait.IDLE_SERVERS
        batch = None
        while batch is None:
            if not self.queue.has_batch():
                yield Wait.BATCH
            batch, dropped = self.queue.take()
            self._forget(dropped)
        waited = self.now - asked
        # A round of oversampling is over: what was parked streams on.
        self._set_speed()
        self._feed()
        staleness = self._note_staleness(batch)
        num_tokens = sum(group.num_tokens() for group in batch)
        self._training_tokens.append(
            training_tokens(
                len(batch),
                samples_per_group=self.run.queue.samples_per_group,
                prompt_tokens=self.lengths.prompt_tokens,
                response_tokens=num_tokens,
            )
        )
        try:
            yield from self._busy(self.run.costs.between_seconds)
            yield from self._train_on(self._version)
            waited += yield from self._publish()
        except _TrainerDied:
            yield from self._restart()
        after = self.fleet.sums(self.now)
        busy, requests, tokens = (now - then for now, then in zip(after, before, strict=True))
        self.outcome.steps.append(
            PlannedStep(self.now - asked, waited, busy, requests, tokens, num_tokens, *staleness)
        )

    def _train_on(self, version: int) -> Iterator[float]:
        self._is_training = True
        self._set_speed()
        yield from self._busy(self.run.costs.training(self._training_tokens[version]))

    def _publish(self) -> Generator[float | Wait, None, float]:
        """The next version, on all servers; returns the seconds of a drain."""
        costs, drained = self.run.costs, 0.0
        yield from self._busy(costs.publish_seconds - costs.install_seconds)
        self._is_training = False
        self._set_speed()
        if self.run.interrupt == "drain":
            self._is_draining, began = True, self.now
            if self.fleet.num_running or self._homeless:
                yield Wait.IDLE_SERVERS
            drained = self.now - began
        self._is_paused = True
        self._set_speed()
        yield from self._busy(costs.install_seconds + self._recompute_seconds())
        self._is_paused = False
        self._version += 1
        self.fleet.install(self.now, self._version)
        self._set_speed()
        return drained

    def _recompute_seconds(self) -> float:
        """Time to recompute keys and values, where an interrupt discards them."""
        per_token = self.run.costs.prefill_seconds_per_token
        if self.run.interrupt not in ("retract", "abort") or not per_token:
            return 0.0
        running = self.fleet.running(self.now)
        tokens = sum(done + self.lengths.prompt_tokens for _, done in running)
        return per_token * tokens / self.run.num_servers

    def _restart(self) -> Iterator[float | Wait]:
        """Restarts from the last checkpoint: batches that were taken are trained again. Nothing streams then,
        but for the batch that the trainer died with."""
        self.outcome.num_trainer_failures += 1
        self._trainer_dies = float("inf")
        newest, every = self._version, self.run.checkpoint_every_steps
        self._is_catching_up, self._is_training, self._is_paused = True, False, False
        self._set_speed()
        yield self.run.failures.trainer_restart_seconds
        for version in range(newest - newest % every, newest):
            yield self.run.costs.training(self._training_tokens[version]) + self.run.costs.publish_seconds
        self._is_catching_up = False
        self._set_speed()
        yield from self._train_on(newest)
        yield from self._publish()
        self._trainer_dies = self.now + self._draw(self.run.failures.trainer_seconds_between)

    def _busy(self, seconds: float) -> Iterator[float]:
        if self.now + seconds > self._trainer_dies:
            yield max(0.0, self._trainer_dies - self.now)
            raise _TrainerDied
        if seconds > 0.0:
            yield seconds

    def _forget(self, dropped: list[PlannedGroup]) -> None:
        if not dropped:
            return
        self.fleet.remove(self.now, dropped)
        gone = set(map(id, dropped))
        self._homeless = [one for one in self._homeless if id(one[0]) not in gone]
        self.outcome.tokens_dropped += sum(group.num_tokens() for group in dropped)
        self._feed()

    def _note_staleness(self, batch: list[PlannedGroup]) -> tuple[float, int]:
        """(mean, maximum) over the batch's tokens, in versions."""
        taken = self._version
        ages: dict[int, float] = {}
        for group in batch:
            for version, tokens in group.tokens.items():
                ages[taken - version] = ages.get(taken - version, 0.0) + tokens
        for age, tokens in ages.items():
            self.outcome.staleness[age] += round(tokens)
        return sum(age * tokens for age, tokens in ages.items()) / sum(ages.values()), max(ages)


def steady_range(run: PlannedRun) -> tuple[int, int | None]:
    """Steps of the steady state, as a slice: the first ones fill the queue, the last ones empty it."""
    ahead, count = run.queue.batches_ahead(), run.queue.num_steps
    first, last = ahead + 1, count - ahead
    return (first, last) if last - first >= 4 else (0, None)
