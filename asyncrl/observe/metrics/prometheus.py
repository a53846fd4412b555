"""Prometheus metrics of a run: GET /metrics of the controller's HTTP service.

Read from the parts at each scrape, which costs the run nothing between scrapes. Token counters are the
journal's and survive a restart; the others count since this start.
"""

import bisect
import importlib.metadata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from asyncrl.journal.connection import DROPPED, GENERATED, REPEATED, TRAINED
from asyncrl.observe.alarms.rule import Alarm
from asyncrl.observe.metrics.charts import values_of
from asyncrl.observe.metrics.step_metrics import Observer
from asyncrl.replay.group import GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.agents.player import AgentPlayer
from asyncrl.rollout.grade import Grader
from asyncrl.run.metrics_file import flat
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.server import Server, ServerState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "asyncrl_"
Sample = tuple[Mapping[str, str], float]
"""Labels and value."""


class Histogram:
    """Counts values by size, cheaply enough for each verdict."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascending: a value counts in the first bucket whose bound it does not exceed."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value


def counter(name: str, help: str, samples: Iterable[Sample] | float) -> Iterator[str]:
    """A number that only rises, since the run began or since this start."""
    assert name.endswith("_total"), name
    return _family(name, "counter", help, samples)


def gauge(name: str, help: str, samples: Iterable[Sample] | float) -> Iterator[str]:
    """A number as it is now."""
    return _family(name, "gauge", help, samples)


def histogram(name: str, help: str, counted: Histogram) -> Iterator[str]:
    yield from _head(name, "histogram", help)
    total = 0
    for bound, count in zip((*counted.bounds, None), counted.counts, strict=True):
        total += count
        upper = "+Inf" if bound is None else _number(bound)
        yield _line(f"{name}_bucket", {"le": upper}, total)
    yield _line(f"{name}_sum", {}, counted.sum)
    yield _line(f"{name}_count", {}, total)


def text(families: Iterable[Iterable[str]]) -> str:
    """The answer to a scrape."""
    return "".join(f"{line}\n" for lines in families for line in lines)


def _family(name: str, kind: str, help: str, samples: Iterable[Sample] | float) -> Iterator[str]:
    found = [({}, samples)] if isinstance(samples, (int, float)) else samples
    yield from _head(name, kind, help)
    for labels, value in found:
        yield _line(name, labels, value)


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    escaped = help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {PREFIX}{name} {escaped}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    inside = ",".join(f'{key}="{text.translate(escapes)}"' for key, text in labels.items())
    return f"{PREFIX}{name}{{{inside}}} {_number(value)}" if inside else f"{PREFIX}{name} {_number(value)}"


def _number(value: float) -> str:
    """Whole numbers without a fraction: a counter of tokens stays exact."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


VERDICT_BOUNDS = (0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
"""Seconds: from a comparison of texts to a remote judge."""
STEP_BOUNDS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
"""Seconds: from a step on a laptop to one of long responses on a cluster."""
STALENESS_BOUNDS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Versions."""


class Waited(Protocol):
    num_waiting: int
    """Requests of the trainer that wait for rollouts."""


class RunMetrics:
    """An observer of the run that hands everything on to another one."""

    content_type = CONTENT_TYPE

    def __init__(
        self,
        name: str,
        observer: Observer,
        queue: ReplayQueue,
        fleet: Fleet,
        grader: Grader,
        session: Waited,
        agents: AgentPlayer | None = None,
    ) -> None:
        """`name` is the recipe's; `agents` make its trajectories, if any do."""
        self._agents = agents
        self._name = name
        self._observer = observer
        self._queue = queue
        self._fleet = fleet
        self._grader = grader
        self._session = session
        self._step_seconds = Histogram(STEP_BOUNDS)
        self._verdict_seconds = Histogram(VERDICT_BOUNDS)
        grader.on_verdict = lambda verdict: self._verdict_seconds.observe(verdict.seconds)
        self._staleness = Histogram(STALENESS_BOUNDS)
        self._last: dict[str, float] = {}
        """Name -> value of the last step, evaluation and benchmarks that had it."""
        self._num_steps = 0

    def step(self, row: dict[str, Any]) -> None:
        self._num_steps += 1
        self._step_seconds.observe(row["step_seconds"])
        self._note("step", row)
        self._observer.step(row)

    def evaluation(self, row: dict[str, Any]) -> None:
        self._note("eval", row)
        self._observer.evaluation(row)

    def benchmark(self, row: dict[str, Any]) -> None:
        self._note("benchmark", row)
        self._observer.benchmark(row)

    def dropped(self, row: dict[str, Any]) -> None:
        self._observer.dropped(row)

    def alarm(self, alarm: Alarm) -> None:
        self._observer.alarm(alarm)

    def took(self, staleness: int) -> None:
        """The trainer took a group whose oldest token was `staleness` versions old."""
        self._staleness.observe(staleness)

    def _note(self, kind: str, row: dict[str, Any]) -> None:
        self._last.update(values_of({"kind": kind, **flat(row)}))

    def text(self) -> str:
        """The answer to a scrape, of `content_type`."""
        own = self._of_agents(self._agents) if self._agents is not None else ()
        return text([*self._of_run(), *self._of_tokens(), *self._of_queue(), *self._of_servers(), *own])

    def _of_run(self) -> Iterator[Iterator[str]]:
        version = importlib.metadata.version("asyncrl")
        yield gauge("info", "Name and version as labels.", [({"run": self._name, "version": version}, 1)])
        yield gauge("policy_version", "The trainer's, as announced.", self._queue.version or 0)
        yield counter("steps_total", "Steps that the trainer ended in this start.", self._num_steps)
        yield histogram("step_seconds", "From one take of the trainer to the next.", self._step_seconds)
        yield gauge(
            "value",
            "The latest value of each column of metrics.jsonl, named as in the trackers.",
            [({"name": name}, value) for name, value in sorted(self._last.items())],
        )
        yield histogram(
            "verifier_seconds", "Of one verdict, without the wait for a worker.", self._verdict_seconds
        )
        yield counter(
            "verdicts_total",
            "By verifier and outcome; an outcome of fault is no verdict on the response.",
            [
                ({"verifier": verifier, "outcome": outcome}, count)
                for (verifier, outcome), count in sorted(self._grader.outcomes.items())
            ],
        )
        yield counter(
            "verifier_faults_retried_total", "Faults whose retry gave a verdict.", self._grader.num_retried
        )
        pool = self._grader.pool_metrics()
        yield counter(
            "verifier_workers_killed_total", "Workers that were late or died.", pool["verifier_killed_total"]
        )
        for name, value in pool.items():
            if name.startswith("judge_"):
                yield counter(
                    name, "Of judges and reward models; unreadable: replies without a verdict.", value
                )

    def _of_tokens(self) -> Iterator[Iterator[str]]:
        counters = self._queue.counters
        yield counter("tokens_generated_total", "Response tokens.", counters.get(GENERATED, 0))
        yield counter("tokens_trained_total", "Each once, at a checkpoint.", counters.get(TRAINED, 0))
        yield counter(
            "tokens_repeated_total", "Of groups that were trained again.", counters.get(REPEATED, 0)
        )
        yield counter(
            "tokens_dropped_total",
            "By the reason for which they are never trained.",
            [
                ({"reason": name.removeprefix(DROPPED)}, count)
                for name, count in sorted(counters.items())
                if name.startswith(DROPPED)
            ],
        )

    def _of_queue(self) -> Iterator[Iterator[str]]:
        groups = self._queue.live.values()
        states = Counter(group.state for group in groups)
        shown = (GroupState.OPEN, GroupState.READY)
        yield gauge(
            "queue_groups",
            "Groups that wait for tokens or verdicts (open) or for the trainer (ready).",
            [({"state": state.value}, states[state]) for state in shown],
        )
        yield gauge("queue_tokens", "Response tokens of these groups.", sum(g.num_tokens() for g in groups))
        yield histogram(
            "staleness_versions", "Of the oldest token of each group that was taken.", self._staleness
        )
        waiting = self._session.num_waiting
        yield gauge("trainer_waiting", "Requests of the trainer that wait for rollouts.", waiting)

    def _of_agents(self, player: AgentPlayer) -> Iterator[Iterator[str]]:
        yield gauge(
            "agents",
            "Programs at work (running), and trajectories that wait for a place (waiting).",
            [({"state": "running"}, player.num_running), ({"state": "waiting"}, player.num_waiting)],
        )
        yield counter("agents_ended_total", "Programs that ended in any way.", player.num_ended)
        counts = player.recorder.tally.counts
        yield counter("agent_faults_total", "Programs that crashed.", counts["agent_faults"])
        yield counter("agent_restarts_total", "Further starts after a crash.", player.num_restarts)
        yield counter("agents_late_total", "Programs over agent.timeout_seconds.", counts["agents_late"])
        recorder = player.recorder
        yield counter("agent_calls_total", "Calls of the model, without those on record.", recorder.num_calls)
        yield counter("agent_branches_total", "Conversations after a first one.", recorder.num_branches)
        refused = counts["agent_refused_calls"]
        yield counter("agent_refused_calls_total", "Requests that were refused.", refused)

    def _of_servers(self) -> Iterator[Iterator[str]]:
        servers = list(self._fleet.members.servers.values())
        states = Counter(server.state for server in servers)
        yield gauge(
            "servers", "Rollout servers by state.", [({"state": s.value}, states[s]) for s in ServerState]
        )

        def of_each(value: Callable[[Server], float]) -> list[tuple[dict[str, str], float]]:
            return [({"server": server.url}, value(server)) for server in servers]

        yield gauge("server_requests", "Running now.", of_each(lambda s: s.num_running))
        yield gauge("server_policy_version", "What it serves.", of_each(lambda s: s.version or 0))
        yield gauge("server_cache_tokens", "Held by its requests.", of_each(lambda s: s.held_tokens))
        yield counter("server_tokens_total", "Streamed from it.", of_each(lambda s: s.num_tokens))
        yield counter("server_busy_seconds_total", "With a request.", of_each(lambda s: s.busy_so_far()))
        yield counter("server_restarts_total", "Of its process.", of_each(lambda s: s.num_process_restarts))
        yield counter("server_retractions_total", "Caches taken back.", of_each(lambda s: s.num_retractions))
