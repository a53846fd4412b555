"""The held-out evaluations of a run: each once per version and occasion, over all of its starts.

Owns what they found; what each response amounts to goes into the journal, before the observer hears of the
evaluation. An evaluation that fails is only a warning: training does not depend on it. One that an earlier
start did not come to is made by the next, as long as its version is served.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path

from asyncrl.errors import ServerError
from asyncrl.evaluation.evaluation_set import HELDOUT, EvaluationSet
from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.evaluation.result import EvaluationFailed, GradedResponse, Result
from asyncrl.journal.connection import Statement
from asyncrl.journal.evaluations import GREEDY, Answer, evaluated, evaluated_tasks
from asyncrl.journal.writer import Journal
from asyncrl.loops import Blocker, BlockerKind, RunPhase, RunTasks, TrainersWait, Waits
from asyncrl.observe.metrics.step_metrics import Observer
from asyncrl.observe.terminal.stage import LateStage
from asyncrl.recipe import Evaluation
from asyncrl.records import PolicyVersion, Task
from asyncrl.run.metrics_file import Metrics
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.publication import Publication


# Owns hard links to the pinned publication, because the trainer deletes all but the last two.
class EvaluationServers:
    """Evaluations take turns; each asks for its version at once, so that the version it gets is the one that
    was published when it was asked for."""

    def __init__(self, fleet: Fleet, waits: Waits, folder: Path) -> None:
        self.fleet = fleet
        self._waits = waits
        self._folder = folder
        self._turn = asyncio.Lock()
        shutil.rmtree(folder, ignore_errors=True)

    def pin(self, publication: Publication) -> Publication:
        """Keeps the files of `publication`; `holding` gives them back."""
        target = self._folder / f"v{publication.version}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in publication.folder.iterdir():
            os.link(path, target / path.name)
        return replace(publication, folder=target)

    @contextlib.asynccontextmanager
    async def holding(self, pinned: Publication) -> AsyncIterator[None]:
        """The servers hold `pinned`, verified, and nothing else. Raises ServerError when they cannot."""
        async with self._turn:
            try:
                self.fleet.serve_only(pinned)
                await self._waits.wait_until(
                    lambda: self._is_settled(pinned),
                    owner=f"evaluation of version {pinned.version}",
                    blocker="its own server",
                )
                if not self._holds(pinned):
                    reasons = "; ".join(server.reason for server in self.fleet.members.servers.values())
                    raise ServerError(f"no evaluation server holds version {pinned.version}: {reasons}")
                yield
            finally:
                shutil.rmtree(pinned.folder, ignore_errors=True)

    def _holds(self, pinned: Publication) -> bool:
        return any(server.version == pinned.version for server in self.fleet.members.serving())

    def _is_settled(self, pinned: Publication) -> bool:
        return (
            self._holds(pinned)
            or self.fleet.weight_owner.wants_publication
            or not self.fleet.members.has_hope()
        )


def statements_of(
    version: PolicyVersion, name: str, tasks: Sequence[Task], result: Result
) -> list[Statement]:
    """Rows of the evaluation `name` of `version`, for one transaction. `result` is in the order of `tasks`.

    The text of most likely answers to held-out tasks is kept; benchmarks and samples would be too much.
    """
    greedy = list(_answers(tasks, result.greedy_responses, is_greedy=True))
    sampled = list(_answers(tasks, result.sampled_responses, is_greedy=False))
    texts = [response.text for group in result.greedy_responses for response in group]
    return [
        *evaluated_tasks(name, ((task.task_id, task.prompt) for task in tasks)),
        *evaluated(version, name, greedy, texts if name == HELDOUT else None),
        *evaluated(version, name, sampled, None),
    ]


def _answers(
    tasks: Sequence[Task], groups: Sequence[Sequence[GradedResponse]], *, is_greedy: bool
) -> Iterator[Answer]:
    if not groups:
        return
    for task, group in zip(tasks, groups, strict=True):
        for sample, response in enumerate(group):
            score = response.score
            yield Answer(
                task.task_id,
                GREEDY if is_greedy else sample,
                score.outcome,
                score.correctness,
                response.num_tokens,
                response.is_cut,
                score.extracted,
            )


log = logging.getLogger(__name__)


@dataclass
class HeldOutSchedule:
    section: Evaluation
    tasks: list[Task]
    """Tasks of data.heldout."""
    eval_sets: Sequence[EvaluationSet]
    """Benchmarks and named sets, measured before and after training, and during it where they are due."""
    template: str
    """Template that `tasks` are asked under."""
    evaluator: Evaluator
    evaluation_servers: EvaluationServers | None
    """Servers for evaluations alone; without them the rollout servers answer."""
    waits: Waits
    state: RunPhase
    run_tasks: RunTasks
    journal: Journal
    observer: Observer
    known: InitVar[Metrics | None] = None
    """Measured by earlier starts, of versions that this one does not make again."""
    accuracies: list[tuple[PolicyVersion, float]] = field(default_factory=list)
    """(version, greedy accuracy) of all that are finished; it only grows."""
    reached: float | None = None
    """The accuracy during training that was evaluation.stop_at_accuracy or more."""
    _started: dict[tuple[PolicyVersion, str], "asyncio.Task[None]"] = field(default_factory=dict)
    _shown: list[Evaluator] = field(default_factory=list)
    """Copies whose progress is shown."""

    def __post_init__(self, known: Metrics | None) -> None:
        self._pairs = [(eval_set, eval_set.evaluator(self.evaluator)) for eval_set in self.eval_sets]
        known = known or Metrics()
        self._measured = {(HELDOUT, row["step"], row["when"]) for row in known.evaluations}
        self._measured |= {(row["benchmark"], row["step"], row["when"]) for row in known.benchmarks}
        """(name, version, occasion) of what the observer was told."""
        for row in known.evaluations:
            if row.get("greedy_accuracy") is not None:
                self._note_accuracy(row["step"], row["when"], row["greedy_accuracy"])

    @property
    def num_tokens(self) -> int:
        """Streamed to evaluations so far: whether they move."""
        evaluators = [self.evaluator, *(evaluator for _, evaluator in self._pairs), *self._shown]
        return sum(evaluator.num_streamed for evaluator in evaluators)

    def is_answering_in_time(self) -> bool:
        """Whether an evaluation waits for a tool or an agent that its limits still allow."""
        # Those of benchmarks note theirs in the same place.
        return self.evaluator.is_answering_in_time()

    async def close(self) -> None:
        if self.evaluation_servers is not None:
            await self.evaluation_servers.fleet.members.close()

    def is_on_rollout_servers(self) -> bool:
        """Whether an evaluation runs that needs the rollout servers awake."""
        return self.evaluation_servers is None and not all(task.done() for task in self._started.values())

    def is_due(self, version: PolicyVersion, num_steps: int) -> bool:
        """Whether this version is one to evaluate during training, and no earlier start did."""
        return 0 < version < num_steps and bool(self.lacks(version, "during"))

    def lacks(self, version: PolicyVersion, when: str) -> list[str]:
        """Names of the evaluations that a version still needs: held-out, then benchmarks and sets."""
        every = self.section.every_steps
        is_asked = when != "during" or (every > 0 and version % every == 0)
        names = [HELDOUT] if self.tasks and is_asked else []
        names += [each.name for each, _ in self._pairs if when != "during" or each.is_due(version)]
        return [name for name in names if (name, version, when) not in self._measured]

    def start(self, publication: Publication, when: str) -> "asyncio.Task[None]":
        """The evaluation of a version that is served now, started once however often it is asked for."""
        key = (publication.version, when)
        if key not in self._started:
            kept = self.evaluation_servers.pin(publication) if self.evaluation_servers else None
            self._started[key] = self.run_tasks.start(self._run(*key, kept), f"evaluation {key}")
            self._started[key].add_done_callback(lambda _: self.waits.notify())
        return self._started[key]

    async def wait(
        self, publication: Publication, when: str, *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Starts it and waits until it is done, or until `unless` is true."""
        if self.lacks(publication.version, when):
            task = self.start(publication, when)
            await self.waits.wait_until(
                lambda: task.done() or unless(),
                owner=TrainersWait.EVALUATION,
                blocker=Blocker(BlockerKind.EVALUATION, when),
            )

    async def _run(self, version: PolicyVersion, when: str, kept: Publication | None) -> None:
        try:
            if self.evaluation_servers is not None and kept is not None:
                async with self.evaluation_servers.holding(kept):
                    await self._measure(version, when)
            else:
                await self._measure(version, when)
        except ServerError as error:
            _warn("the evaluation", version, when, error)

    async def _measure(self, version: PolicyVersion, when: str) -> None:
        lacking = self.lacks(version, when)
        if HELDOUT in lacking:
            await self._measure_heldout(version, when)
        for eval_set, evaluator in self._pairs:
            if eval_set.name not in lacking:
                continue
            log.warning("benchmark %s %s training: %d responses", eval_set.name, when, eval_set.num_responses)
            try:
                with self._showing(eval_set.name, when, evaluator, eval_set.num_responses) as shown:
                    result = await eval_set.measure(shown)
            except EvaluationFailed as error:
                _warn(f"benchmark {eval_set.name}", version, when, error)
            else:
                await self._record(version, eval_set.name, eval_set.tasks, result)
                self.observer.benchmark(
                    {"step": version, "when": when, **eval_set.describe(), **result.row()}
                )
                self._measured.add((eval_set.name, version, when))

    async def _measure_heldout(self, version: PolicyVersion, when: str) -> None:
        """Samples are taken before and after training only."""
        k = 0 if when == "during" else self.section.samples_per_task
        try:
            with self._showing(HELDOUT, when, self.evaluator, len(self.tasks) * (1 + k)) as shown:
                result = await shown.evaluate(self.tasks, is_greedy=True, num_samples=k)
        except EvaluationFailed as error:
            _warn("the evaluation", version, when, error)
            return
        await self._record(version, HELDOUT, self.tasks, result)
        row = result.numbers()
        how = {"template": self.template, **self.evaluator.sampling.settings()}
        self.observer.evaluation({"step": version, "when": when, **how, **row})
        self._measured.add((HELDOUT, version, when))
        self._note_accuracy(version, when, row["greedy_accuracy"])
        if when == "during" and self.reached is not None and not self.state.is_over:
            target = self.section.stop_at_accuracy
            log.warning("held-out accuracy %.3f reached %s: the run ends", self.reached, target)
            self.state.end_batches()

    @contextlib.contextmanager
    def _showing(self, name: str, when: str, evaluator: Evaluator, num_responses: int) -> Iterator[Evaluator]:
        """The evaluator to ask: nothing else happens before and after training, so one that takes long says
        how far it is."""
        if when == "during":
            yield evaluator
            return
        num_graded = 0

        def graded(number: int) -> None:
            nonlocal num_graded
            num_graded += number
            words = f"{num_graded:,} of {num_responses:,} responses"
            if not self.state.is_stopped:
                progress.show(words, done=num_graded, total=num_responses)

        with LateStage(f"evaluating {name} {when} training") as progress:
            self._shown.append(replace(evaluator, on_graded=graded, num_streamed=0))
            yield self._shown[-1]

    def _note_accuracy(self, version: PolicyVersion, when: str, accuracy: float) -> None:
        self.accuracies.append((version, accuracy))
        target = self.section.stop_at_accuracy
        if target is not None and when == "during" and accuracy >= target:
            self.reached = max(accuracy, self.reached or 0.0)

    async def _record(self, version: PolicyVersion, name: str, tasks: Sequence[Task], result: Result) -> None:
        """Returns when it is on disk. Raises JournalError."""
        self.journal.write(*statements_of(version, name, tasks, result))
        with self.waits.waiting("evaluation", "the disk"):
            await self.journal.barrier()


def _warn(what: str, version: PolicyVersion, when: str, error: Exception) -> None:
    log.warning("%s %s training of version %d failed: %s", what, when, version, error)
