"""The teacher of a run: the server that scores what the policy sampled, asked until it answers.

A server that fails is asked again, and restarted where it is the run's; responses wait meanwhile. A response
that a server refuses whenever it is asked leaves its group, counted as a fault. Neither is ever a wrong
answer."""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypedDict

import aiohttp

from asyncrl.errors import AsyncrlError, RequestRefused, ServerError
from asyncrl.journal.packing import pack_logprobs
from asyncrl.loops import Blocker, BlockerKind, Waits, now_seconds
from asyncrl.model.column_bytes import TEACHER_LOGPROBS, TEACHER_TOP, pack_top
from asyncrl.records import Columns, Segment, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.serving.server_process import MAX_RESTARTS, ProcessOwner
from asyncrl.serving.sglang import health, scores
from asyncrl.system.plugins import FaultsInARow

log = logging.getLogger(__name__)

NAME = "the teacher"
PAUSE_SECONDS = 1.0
"""Before a server that answers is asked again."""
_MAX_RETRIES = 2
"""Failures in a row of a server that answers that it is ready, before it is restarted all the same."""


class TeacherMetrics(TypedDict):
    """Since the start."""

    teacher_scored_total: int
    """Responses."""
    teacher_refused_total: int
    teacher_restarts_total: int
    """How often it failed and was brought back, or was tried to."""
    teacher_seconds_total: float
    """Spent on its answers, summed over requests."""


class TeacherFailed(AsyncrlError):
    """The teacher gives no more log-probs; the message says why."""


@dataclass
class Teacher:
    """One per run. `metrics` are counted since the start."""

    url: str
    temperature: float
    session: aiohttp.ClientSession
    waits: Waits
    processes: ProcessOwner
    max_running: int
    """Most responses that are asked about at once."""
    timeout_seconds: float
    max_refused_in_a_row: int
    top_k: int = 0
    """Likeliest tokens that are asked for at each place."""
    never: Collection[int] = ()
    """Tokens that the policy never samples."""
    pause_seconds: float = PAUSE_SECONDS
    clock: Callable[[], float] = now_seconds
    num_scored: int = 0
    num_refused: int = 0
    seconds: float = 0.0
    _num_heals: int = 0
    _num_failures: int = 0
    """In a row."""

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.max_running)
        self._refusals = FaultsInARow(self.max_refused_in_a_row, self.clock)
        self._healing = asyncio.Lock()

    def progress(self) -> tuple[int, int, int]:
        """Changes as long as anything moves."""
        return self.num_scored, self.num_refused, self._num_heals

    def metrics(self) -> TeacherMetrics:
        return {
            "teacher_scored_total": self.num_scored,
            "teacher_refused_total": self.num_refused,
            "teacher_restarts_total": self._num_heals,
            "teacher_seconds_total": self.seconds,
        }

    async def scores(self, trajectory: Trajectory) -> dict[str, Columns] | None:
        """The columns of the sampled tokens of a finished trajectory and of its branches, by their ids; None
        where the server refuses one of them. Raises TeacherFailed."""
        with self.waits.waiting(f"trajectory {trajectory.trajectory_id}", Blocker(BlockerKind.TEACHER, NAME)):
            try:
                found = {
                    line.trajectory_id: await self._scores_of(line)
                    for line in trajectory.lines()
                    if line.num_sampled_tokens()
                }
            except RequestRefused as error:
                self._refused(trajectory, error)
                return None
        self.num_scored += 1
        self._refusals.answered(NAME)
        return found

    async def _scores_of(self, line: Trajectory) -> Columns:
        """Log-probs of its sampled tokens, and the likeliest tokens there if asked. Raises RequestRefused and
        TeacherFailed."""
        first, places = len(line.prompt_tokens), _sampled_places(line)
        tokens = [*line.prompt_tokens, *line.response_tokens()[: places[-1] + 1]]
        while True:
            num_heals = self._num_heals
            try:
                async with self._room:
                    begun = now_seconds()
                    found, top = await scores.score(
                        self.session,
                        self.url,
                        tokens,
                        first=first,
                        temperature=self.temperature,
                        timeout_seconds=self.timeout_seconds,
                        top_k=self.top_k,
                    )
            except RequestRefused:
                raise
            except ServerError as error:
                await self._heal(num_heals, error)
                continue
            self._num_failures = 0
            self.seconds += now_seconds() - begun
            rows = [top[place] for place in places] if top else []
            columns = {TEACHER_LOGPROBS: pack_logprobs([found[place] for place in places])}
            return columns | ({TEACHER_TOP: pack_top(rows, self.never)} if rows else {})

    async def _heal(self, num_heals: int, error: ServerError) -> None:
        """Returns when the server may be asked again: one attempt for all responses that it failed. Raises
        TeacherFailed."""
        async with self._healing:
            if num_heals != self._num_heals:
                return
            self._num_failures += 1
            if self._num_failures > MAX_RESTARTS:
                raise TeacherFailed(
                    f"{NAME} ({self.url}) failed {self._num_failures} times in a row: {error} See that it "
                    "runs, and run the same command again: the run resumes, with every response that it has."
                ) from error
            log.warning("%s (%s) failed: %s. Responses wait for it.", NAME, self.url, error)
            try:
                await self._bring_back()
            except ServerError as refusal:
                log.warning("%s (%s) does not come back: %s", NAME, self.url, refusal)
                await asyncio.sleep(self.pause_seconds)
            self._num_heals += 1

    async def _bring_back(self) -> None:
        if self._num_failures <= _MAX_RETRIES and await health.is_ready(self.session, self.url):
            await asyncio.sleep(self.pause_seconds)
            return
        self.url = await self.processes.restart_server(self.url) or self.url
        log.warning("%s is back at %s", NAME, self.url)

    def _refused(self, trajectory: Trajectory, error: RequestRefused) -> None:
        """Raises TeacherFailed when it refuses one after the other."""
        self.num_refused += 1
        if self._refusals.is_first(NAME, str(error)):
            log.warning(
                "%s refuses the response %s, which leaves its group: %s. Further refusals of this cause are "
                "counted, not shown.",
                NAME,
                trajectory.trajectory_id,
                error,
            )
        if (number := self._refusals.failed(NAME)) is not None:
            raise TeacherFailed(
                f"{NAME} ({self.url}) refused {number} responses in a row (verifying.max_faults_in_a_row), "
                f"the last time: {error} Correct it and run the same command again: the run resumes, with "
                "every response that it has."
            ) from error


@dataclass(frozen=True)
class TeacherScoring:
    """The teacher's columns of the trajectories of groups."""

    teacher: Teacher
    queue: ReplayQueue

    def lacks(self, group: Group, trajectory: Trajectory) -> bool:
        return not trajectory.is_greedy and any(
            line.num_sampled_tokens() and TEACHER_LOGPROBS not in group.columns.get(line.trajectory_id, {})
            for line in trajectory.lines()
        )

    async def ask(self, group: Group, trajectory: Trajectory) -> None:
        found = await self.teacher.scores(trajectory)
        if found is not None and group.state is GroupState.OPEN:
            self.queue.add_columns(group, found)


def _sampled_places(line: Trajectory) -> list[int]:
    """[T] places of its sampled tokens in the response."""
    places: list[int] = []
    count = 0
    for segment in line.segments:
        if isinstance(segment, Segment):
            places += range(count, count + len(segment.tokens))
        count += len(segment.tokens)
    return places
