"""A run as a small event loop: feed, servers, queue and trainer, as the controller connects them.

All requests of a server get tokens at one rate, which falls with their number. The trainer is a generator
that yields how long it is busy, or what it waits for; everything else reacts to the end of a request.
Admission and choice of a batch are the replay queue's own. No clock is read: equal runs have equal outcomes.

Left out: verdicts, groups without signal (but for runs with pilots), evaluations,
rollout.tokens_per_round, rollout.abort_staleness, serving.hedge_seconds, failures, and the trainer's own skew
over ranks.
"""

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from asyncrl.readers.planning.settings import Lengths, Outcome, PlannedRun, PlannedStep, training_tokens
from asyncrl.replay.group import GroupState
from asyncrl.replay.policy import choose_liked, choose_oldest


@dataclass(slots=True, eq=False)
class _Group:
    group_id: int
    admitted_version: int
    num_open: int
    """Trajectories that have not ended."""
    state: GroupState = GroupState.OPEN
    tokens: dict[int, float] = field(default_factory=dict)
    """Version -> response tokens that it made."""
    num_samples: int = 0
    """Trajectories so far."""
    rewards: list[bool] = field(default_factory=list)
    """Rewards of the whole group, where the run has pilots."""

    def num_tokens(self) -> float:
        return sum(self.tokens.values())

    def mean_version(self) -> float:
        return sum(version * count for version, count in self.tokens.items()) / self.num_tokens()


@dataclass(slots=True, eq=False)
class _Server:
    ends: list[tuple[float, int, float, _Group]] = field(default_factory=list)
    """A heap of what runs: (position at which it ends, a number that orders equals, position at which it
    began, group)."""
    position: float = 0.0
    """Tokens that a request running all along would have."""
    settled: float = 0.0
    """Decode time up to which `position` is right; in the future while prompts are computed."""
    installed: float = 0.0
    """Position at which its weights were installed."""
    stamp: int = 0
    """Number of its newest scheduled end: older ones do not count."""


def simulate(run: PlannedRun, lengths: Lengths) -> Outcome:
    """Simulates all steps of the run."""
    return Simulation(run, lengths).finish()


class Simulation:
    """One run; `finish` once."""

    def __init__(self, run: PlannedRun, lengths: Lengths) -> None:
        self.run = run
        self.lengths = lengths
        self.now = 0.0
        # Others would never have a group.
        most_groups = run.queue.groups_per_batch * run.queue.batches_ahead()
        self.servers = [_Server() for _ in range(min(run.num_servers, most_groups))]
        self.live: dict[int, _Group] = {}
        """Groups that are not taken, in admission order."""
        self.num_generated = 0.0
        """Tokens."""
        self._outcome = Outcome(run)
        self._happenings: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._num_groups = self._num_taken = 0
        self._num_busy = self._num_running = 0
        """Servers with a request, and requests."""
        self._busy_seconds = self._request_seconds = 0.0
        self._decoded = 0.0
        """Decode time: it stands still while servers are held."""
        self._ends: list[tuple[float, int, _Server]] = []
        """(decode time, stamp, server)."""
        self._version = 0
        self._is_admitting = False
        """The controller is busy with a new group, before the next."""
        self._is_paused = self._is_draining = self._is_over = False
        self._extended: deque[_Group] = deque()
        """Groups whose pilot is to be extended as soon as a server has room."""
        self._num_dropped = self._num_dropped_in_a_row = 0
        self._is_batch_there: bool | None = None
        """None where groups have changed since it was last looked at."""
        self._trainer = self._train()
        self._waits_for: Callable[[], bool] | None = None
        self._group_size = run.queue.samples_per_group + run.queue.has_greedy
        self._admitted_size = self._group_size if run.pilots is None else run.pilots.num_pilot
        self._most_requests = max(run.max_running_requests, self._group_size)
        self._rates = [0.0] + [
            # Requests that do not fit into the cache wait their turn.
            min(1.0, run.decode_slots / n) / run.costs.decode_latency(min(n, run.decode_slots))
            for n in range(1, self._most_requests + 1)
        ]
        """Requests -> tokens per second of each."""

    def finish(self) -> Outcome:
        self._resume_trainer()
        while not self._is_over:
            while self._ends and self._ends[0][1] != self._ends[0][2].stamp:
                heapq.heappop(self._ends)
            # No server generates: weights are installed, or a round of oversampling has its batch.
            is_held = self._is_paused or (self.run.oversampling is not None and self._has_batch())
            seconds = math.inf if is_held or not self._ends else max(0.0, self._ends[0][0] - self._decoded)
            happening = self._happenings[0][0] - self.now if self._happenings else math.inf
            assert min(seconds, happening) < math.inf, "nothing is left that could happen"
            self._advance(min(seconds, happening), is_held=is_held)
            if happening <= seconds:
                heapq.heappop(self._happenings)[2]()
            else:
                self._end_requests(heapq.heappop(self._ends)[2])
            self._feed()
            if self._waits_for is not None and self._waits_for():
                self._resume_trainer()
        return self._outcome

    # The rollout side

    def _advance(self, seconds: float, *, is_held: bool) -> None:
        self.now += seconds
        self._busy_seconds += seconds * self._num_busy
        self._request_seconds += seconds * self._num_running
        if not is_held:
            self._decoded += seconds

    def _settle(self, server: _Server) -> None:
        seconds = max(0.0, self._decoded - server.settled)
        server.position += seconds * self._rates[len(server.ends)]
        server.settled += seconds

    def _schedule(self, server: _Server) -> None:
        """The next end of a settled server."""
        server.stamp = next(self._numbers)
        if server.ends:
            left = max(0.0, server.ends[0][0] - server.position)
            at = server.settled + left / self._rates[len(server.ends)]
            heapq.heappush(self._ends, (at, server.stamp, server))

    def _feed(self) -> None:
        """Extends pilots, then admits new groups, while bound and servers allow."""
        while self._extended and not self._is_draining:
            if not self._send(self._extended[0], self._group_size - self._admitted_size):
                return
            self._extended.popleft()
        while not (self._is_draining or self._is_admitting) and self._may_admit():
            group = _Group(self._num_groups, self._version, 0)
            if not self._send(group, self._admitted_size):
                return
            if self.run.pilots is not None:
                group.rewards = self.run.pilots.rewards(group.group_id)
            self.live[group.group_id] = group
            self._num_groups += 1
            self._is_batch_there = None
            if self.run.costs.admit_seconds:
                self._is_admitting = True
                self._plan(self.run.costs.admit_seconds, self._end_admission)

    def _send(self, group: _Group, num_more: int) -> bool:
        """Starts the group's next trajectories on the server with the fewest; False where it has no room."""
        server = min(self.servers, key=lambda server: len(server.ends))
        if len(server.ends) + num_more > self._most_requests:
            return False
        self._settle(server)
        server.settled += self.run.costs.prefill_group_seconds
        self._num_busy += not server.ends
        self._num_running += num_more
        lengths = self.lengths.of_group(group.group_id, group.num_samples + num_more)
        for tokens in lengths[group.num_samples :]:
            end = (server.position + tokens, next(self._numbers), server.position, group)
            heapq.heappush(server.ends, end)
        group.num_samples += num_more
        group.num_open += num_more
        self._schedule(server)
        return True

    def _may_admit(self) -> bool:
        """Whether the staleness bound, the run's length and, with oversampling, the round allow a group."""
        queue, factor = self.run.queue, self.run.oversampling
        if self._num_groups - self._num_dropped >= queue.most_admitted(self._version):
            return False
        if factor is None:
            return True
        return len(self.live) < math.ceil(factor * queue.groups_per_batch) and not self._has_batch()

    def _end_admission(self) -> None:
        self._is_admitting = False

    def _end_requests(self, server: _Server) -> None:
        self._settle(server)
        while server.ends and server.ends[0][0] <= server.position + 1e-6:
            end, _, begun, group = heapq.heappop(server.ends)
            self._count(server, group, begun, end)
            self._num_running -= 1
            group.num_open -= 1
            if not group.num_open:
                self._end_group(group)
        self._num_busy -= not server.ends
        self._schedule(server)

    def _end_group(self, group: _Group) -> None:
        """All trajectories that it has so far have ended: it is extended, ready or dropped."""
        pilots = self.run.pilots
        if pilots is not None:
            rewards = group.rewards[: group.num_samples]
            if group.num_samples == pilots.num_pilot and pilots.extends(rewards):
                self._extended.append(group)
                return
            is_dead = len(set(rewards)) == 1
            if is_dead and self._num_dropped_in_a_row < pilots.max_dropped_in_a_row:
                self._num_dropped += 1
                self._num_dropped_in_a_row += 1
                del self.live[group.group_id]
                self._is_batch_there = None
                return
            self._num_dropped_in_a_row = 0
        group.state = GroupState.READY
        self._is_batch_there = None

    def _count(self, server: _Server, group: _Group, begun: float, end: float) -> None:
        """The tokens of a request since the newest version was installed."""
        tokens = end - max(begun, server.installed)
        group.tokens[self._version] = group.tokens.get(self._version, 0.0) + tokens
        self.num_generated += tokens

    def _choose(self) -> list[_Group] | None:
        """The next batch by the queue's rules; None while there is none."""
        queue, live = self.run.queue, list(self.live.values())
        if queue.order == "strict_admission":
            return choose_oldest(live, batch_size=queue.groups_per_batch)
        # All groups are alike here: the order "signal" has nothing to tell apart.
        liked = [group for group in live if group.state is GroupState.READY]
        if queue.order == "freshness" and len(liked) >= queue.groups_per_batch:
            liked.sort(key=lambda group: (-group.mean_version(), group.group_id))
        return choose_liked(
            live, liked, self._num_taken, batch_size=queue.groups_per_batch, max_staleness=queue.max_staleness
        )

    def _has_batch(self) -> bool:
        if self._is_batch_there is None:
            self._is_batch_there = self._choose() is not None
        return self._is_batch_there

    def _plan(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._happenings, (self.now + seconds, next(self._numbers), happen))

    # The trainer

    def _resume_trainer(self) -> None:
        """Runs the trainer until it is busy or waits; one that could continue at once does."""
        self._waits_for = None
        for needed in self._trainer:
            if isinstance(needed, float):
                if needed > 0.0:
                    return self._plan(needed, self._resume_trainer)
                continue
            self._feed()
            if not needed():
                self._waits_for = needed
                return
        self._is_over = True

    def _train(self) -> Iterator[float | Callable[[], bool]]:
        """Takes, trains and publishes, step by step: yields seconds of work, or what it waits for."""
        costs, queue = self.run.costs, self.run.queue
        for version in range(queue.num_steps):
            began, before = self.now, self._sums()
            self._is_draining = False
            yield self._has_batch
            batch = self._take()
            waited = self.now - began
            self._feed()
            num_tokens = sum(group.num_tokens() for group in batch)
            num_responses = sum(group.num_samples for group in batch)
            yield costs.training(
                training_tokens(
                    len(batch),
                    samples_per_group=(num_responses - len(batch) * queue.has_greedy) / len(batch),
                    prompt_tokens=self.lengths.prompt_tokens,
                    response_tokens=num_tokens,
                )
            )
            yield costs.publish_seconds - costs.install_seconds
            if self.run.interrupt == "drain":
                self._is_draining, asked = True, self.now
                yield lambda: not self._num_running
                waited += self.now - asked
            self._is_paused = True
            yield costs.install_seconds + self._recompute_seconds()
            self._is_paused = False
            self._install()
            busy, requests, tokens = (now - then for now, then in zip(self._sums(), before, strict=True))
            staleness = _staleness(batch, version)
            step = PlannedStep(
                self.now - began, waited, busy, requests, tokens, num_tokens, staleness, num_responses
            )
            self._outcome.steps.append(step)

    def _take(self) -> list[_Group]:
        batch = self._choose()
        assert batch is not None, "the trainer waited for it"
        for group in batch:
            del self.live[group.group_id]
        self._num_taken += 1
        self._is_batch_there = None
        return batch

    def _install(self) -> None:
        """The next version, on all servers: what was generated until now is of the one before."""
        for server in self.servers:
            self._settle(server)
            for _, _, begun, group in server.ends:
                self._count(server, group, begun, server.position)
            server.installed = server.position
        self._version += 1

    def _recompute_seconds(self) -> float:
        """Time to recompute keys and values, where an interrupt discards them."""
        per_token = self.run.costs.prefill_seconds_per_token
        if self.run.interrupt not in ("retract", "abort") or not per_token:
            return 0.0
        held = sum(
            server.position - begun + self.lengths.prompt_tokens
            for server in self.servers
            for _, _, begun, _ in server.ends
        )
        return per_token * held / self.run.num_servers

    def _sums(self) -> tuple[float, float, float]:
        """Up to an install, over all servers: seconds with a request, request-seconds, tokens generated."""
        return self._busy_seconds, self._request_seconds, self.num_generated


def _staleness(batch: list[_Group], taken_at: int) -> dict[int, float]:
    """Age in versions -> tokens of the batch."""
    ages = Counter[int]()
    for group in batch:
        for version, tokens in group.tokens.items():
            ages[taken_at - version] += tokens  # type: ignore[assignment]  # typed for whole numbers alone
    return dict(ages)
