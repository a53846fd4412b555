"""The held-out evaluations of a run: each once per version and occasion, during training.

Owns what they found. An evaluation that fails is a note: training does not depend on it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from asyncrl.errors import ServerError
from asyncrl.evaluation.run import EvaluationFailed, Evaluator
from asyncrl.observe.observer import Observer
from asyncrl.recipe import Evaluation
from asyncrl.records import PolicyVersion, Task
from asyncrl.serving.pinned import PinnedServers
from asyncrl.serving.publication import Publication
from asyncrl.waits import Waits

Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


class HeldOutSchedule:
    """`pinned` gives evaluations servers of their own; without it the rollout servers answer."""

    def __init__(
        self,
        section: Evaluation,
        tasks: list[Task],
        evaluator: Evaluator,
        pinned: PinnedServers | None,
        *,
        waits: Waits,
        observer: Observer,
        spawn: Spawn,
        reached_target: Callable[[], None],
    ) -> None:
        self._section = section
        self._tasks = tasks
        self._evaluator = evaluator
        self.pinned = pinned
        self._waits = waits
        self._observer = observer
        self._spawn = spawn
        self._reached_target = reached_target
        self._started: dict[tuple[PolicyVersion, str], asyncio.Task[None]] = {}
        self.accuracies: list[tuple[PolicyVersion, float]] = []
        """(version, greedy accuracy) of all that are finished."""

    @property
    def num_tokens(self) -> int:
        """Streamed to evaluations so far: whether they move."""
        return self._evaluator.num_streamed

    async def close(self) -> None:
        if self.pinned is not None:
            await self.pinned.fleet.close()

    def is_due(self, version: PolicyVersion, num_steps: int) -> bool:
        """Whether this version is one to look at during training."""
        every = self._section.every_steps
        return every > 0 and 0 < version < num_steps and version % every == 0

    def start(self, publication: Publication, when: str) -> "asyncio.Task[None]":
        """The evaluation of a version that is served now, started once however often it is asked for."""
        key = (publication.version, when)
        if key not in self._started:
            kept = self.pinned.pin(publication) if self.pinned else None
            self._started[key] = self._spawn(self._run(*key, kept), f"evaluation {key}")
        return self._started[key]

    async def wait(
        self, publication: Publication, when: str, *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Starts it and waits until it is done, or until `unless` is true."""
        if self._tasks:
            task = self.start(publication, when)
            task.add_done_callback(lambda _: self._waits.notify())
            await self._waits.wait_until(
                lambda: task.done() or unless(), owner="train", blocker=f"the evaluation {when} training"
            )

    async def _run(self, version: PolicyVersion, when: str, kept: Publication | None) -> None:
        try:
            if self.pinned is not None and kept is not None:
                async with self.pinned.holding(kept):
                    found = await self._measure(when)
            else:
                found = await self._measure(when)
        except (EvaluationFailed, ServerError) as error:
            self._observer.note(f"the evaluation {when} training of version {version} failed: {error}")
            return
        accuracy, target = found["greedy_accuracy"], self._section.stop_at_accuracy
        self.accuracies.append((version, accuracy))
        self._observer.evaluation({"step": version, "when": when, **found})
        if target is not None and when == "during" and accuracy >= target:
            self._observer.note(f"held-out accuracy {accuracy:.3f} reached {target}: the run ends")
            self._reached_target()

    async def _measure(self, when: str) -> dict[str, float]:
        found: dict[str, float] = {}
        if when != "during":
            samples = self._section.samples_per_task
            found = await self._evaluator.sampled(self._tasks, num_samples=samples)
        return found | await self._evaluator.greedy(self._tasks)
