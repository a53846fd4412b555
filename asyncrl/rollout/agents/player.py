"""Trajectories that agents make: each starts the user's program, which calls the model and ends.

The program is the user's code. Where it ends with another code than 0, or a signal, that is a fault: it is
started again, and in the end its trajectory has no score. Time is the response's: a program over
agent.timeout_seconds, waits for the model left out, makes the trajectory wrong. A program that a limit
refused a call (context, tokens, calls) may end as it likes: the verifier judges what there is.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from asyncrl.errors import AsyncrlError
from asyncrl.loops import Blocker, BlockerKind, RunPhase, Waits
from asyncrl.records import Finish, Score, Trajectory
from asyncrl.replay.branches import TrajectoryRecord
from asyncrl.replay.group import Group, GroupState
from asyncrl.rollout.agents.process import Access, Exit, Program, Programs
from asyncrl.rollout.agents.recorder import CallRecorder
from asyncrl.rollout.agents.session import Session
from asyncrl.rollout.credits import Shaping, joint_score, judged_lines
from asyncrl.rollout.grade import score_of
from asyncrl.serving.fleet import Gate
from asyncrl.system.plugins import FaultsInARow
from verifiers.storable import storable
from verifiers.verdict import Outcome, Verdict, fault, no_answer, over_limit

log = logging.getLogger(__name__)

MOST_SECONDS = 4096
"""Programs whose own time is kept for the next step's metrics."""
AGENT = "agent"
"""Names it among the run's plug-ins: there is one."""


class AgentFailed(AsyncrlError):
    """The agent's program no longer ends well; the message holds what it printed last."""


@dataclass
class AgentPlayer:
    """As `Generator.run`, for trajectories that an agent makes."""

    queue: TrajectoryRecord
    recorder: CallRecorder
    programs: Programs
    shaping: Shaping
    waits: Waits
    state: RunPhase
    base_url: Callable[[], str]
    """Known once the endpoint listens."""
    timeout_seconds: float
    num_fault_retries: int
    max_agents: int
    places: asyncio.Semaphore | None = None
    """Shared with other players; None: `max_agents` of its own."""
    faults: FaultsInARow = field(default_factory=lambda: FaultsInARow(24))
    num_restarts: int = 0
    """Further starts of programs that crashed, since the start."""
    num_ended: int = 0
    """Programs that ended in any way since the start."""
    num_waiting: int = 0
    """Trajectories that wait for a place now."""
    ended_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_SECONDS))
    """Own time of the programs that ended last; the metrics take it out."""
    _sessions: set[Session] = field(default_factory=set)
    """Those of programs that run now."""
    _places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._places = self.places or asyncio.Semaphore(self.max_agents)

    async def run(self, group: Group) -> AsyncIterator[Trajectory]:
        """Each trajectory of `group` as it ends, some with a score already. Stops early, without error, when
        the run ends. Raises GenerationFailed as the generator does."""
        ended: asyncio.Queue[Trajectory | None] = asyncio.Queue()
        pending = [trajectory for trajectory in group.trajectories if trajectory.finish is None]
        tasks = [asyncio.create_task(self._play(group, trajectory, ended)) for trajectory in pending]
        try:
            for _ in tasks:
                trajectory = await ended.get()
                if trajectory is not None:
                    yield trajectory
            # Raises what a player raised.
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.recorder.generator.forget(group)

    async def _play(
        self, group: Group, trajectory: Trajectory, ended: "asyncio.Queue[Trajectory | None]"
    ) -> None:
        is_over = False
        try:
            async with self._place(trajectory):
                if await self._may_begin(group):
                    with Session(self.recorder, group, trajectory) as session:
                        self._sessions.add(session)
                        try:
                            is_over = await self._attempts(group, trajectory, session)
                        finally:
                            self._sessions.discard(session)
        finally:
            ended.put_nowait(trajectory if is_over else None)

    @asynccontextmanager
    async def _place(self, trajectory: Trajectory) -> AsyncIterator[None]:
        self.num_waiting += 1
        try:
            what = f"a place among the agents (agent.max_agents is {self.max_agents})"
            with self.waits.waiting(f"trajectory {trajectory.trajectory_id}", what):
                await self._places.acquire()
        finally:
            self.num_waiting -= 1
        try:
            yield
        finally:
            self._places.release()

    async def _may_begin(self, group: Group) -> bool:
        """Waits while a drain lets nothing begin; False where the run ends or the group was dropped."""
        generator = self.recorder.generator
        await self.waits.wait_until(
            lambda: (
                self._is_over(group) or generator.has_begun(group) or generator.fleet.router.gate is Gate.OPEN
            ),
            owner=f"the agents of group {group.group_id}",
            blocker="the next version, before which none begins (rollout.interrupt: drain)",
        )
        assert generator.turns is not None
        generator.turns.played_groups.add(group.group_id)
        return not self._is_over(group)

    @property
    def num_running(self) -> int:
        """Programs at work now."""
        return len(self._sessions)

    def num_answered(self) -> int:
        """Calls that agents made and programs that ended, since the start: more of them is a move."""
        return self.recorder.num_calls + self.num_ended

    def is_answering_in_time(self) -> bool:
        """Whether a program works by itself and has time left for that."""
        limit = self.timeout_seconds
        return any(not each.has_call() and each.own_seconds() < limit for each in self._sessions)

    async def _attempts(self, group: Group, trajectory: Trajectory, session: Session) -> bool:
        """Whether the trajectory is over; False where the run ends or the group was dropped."""
        try:
            for attempt in range(self.num_fault_retries + 1):
                if attempt:
                    self.num_restarts += 1
                    await session.restart()
                exit = await self._run_program(group, session)
                while exit is not None and exit.is_lost and not self._is_over(group):
                    # Once at most: what is lost is started alone.
                    await session.restart()
                    exit = await self._run_program(group, session)
                self.num_ended += 1
                self.ended_seconds.append(session.own_seconds())
                await session.stop()
                if session.failure is not None:
                    raise session.failure
                if self._is_over(group):
                    return False
                exit = self._fitting(exit, session)
                if exit is None or exit.code == 0 or session.limit:
                    self.faults.answered(AGENT)
                    self._count(group, session, exit)
                    break
                self._failed(group, exit)
                await asyncio.sleep(self.faults.pause_seconds(AGENT))
        finally:
            await session.stop()
        session.keep_answered()
        self._end(group, trajectory, session, exit)
        return True

    def _fitting(self, exit: Exit | None, session: Session) -> Exit | None:
        """The exit, a bad one where a role spoke and has no score."""
        if exit is None or exit.code != 0 or session.limit:
            return exit
        without = sorted(session.roles() - {"", *_scores(exit)})
        if not without:
            return exit
        told = f"its verdict has no score for {without[0]}, which spoke (agent.roles)"
        return Exit(1, f"{told}. {exit.detail}".rstrip())

    async def _run_program(self, group: Group, session: Session) -> Exit | None:
        """The program's exit; None where it was over its time, or was ended for another reason."""
        access = Access(self.base_url(), session.key)
        try:
            program = await self.programs.start(group.task, access, self.waits.notify)
        except OSError as error:
            return Exit(1, f"it cannot start: {error}")
        try:
            await self._wait(group, session, program)
            return program.exit()
        finally:
            await program.end()

    async def _wait(self, group: Group, session: Session, program: Program) -> None:
        """Until the program has exited, is over its time, or nothing is asked of it any more."""

        def is_done() -> bool:
            return program.exit() is not None or session.failure is not None or self._is_over(group)

        while not is_done():
            left = self.timeout_seconds - session.own_seconds()
            if left <= 0:
                return
            # While it waits for the model, its own time stands still.
            has_call = session.has_call()
            await self.waits.wait_until(
                lambda was=has_call: is_done() or session.has_call() is not was,  # type: ignore[misc]
                owner=f"a trajectory of {group.title}",
                blocker=Blocker(BlockerKind.AGENT, "is asking the model" if has_call else "works by itself"),
                timeout_seconds=None if has_call else left,
            )

    def _count(self, group: Group, session: Session, exit: Exit | None) -> None:
        """Counts how a program ended that did not crash."""
        tally, task_id, replies = self.recorder.tally, group.task.task_id, session.num_replies()
        if exit is None:
            tally.add("agents_late", f"{task_id}, with {replies} replies after {self.timeout_seconds:g} s")
        elif replies:
            tally.add("agents_replied")
        elif session.refusal:
            tally.add("agents_refused", f"{task_id}, {session.refusal}", is_known=True)
        else:
            printed = f", after it printed {exit.detail!r}" if exit.detail else ""
            tally.add("agents_without_call", f"{task_id}, with exit code {exit.code}{printed}")

    def _failed(self, group: Group, exit: Exit) -> None:
        """Raises AgentFailed when that lasts too long."""
        words = _ended_badly(exit)
        self.recorder.tally.add("agent_faults", f"{group.task.task_id}, {words}", is_known=True)
        number = self.faults.failed(AGENT)
        if number is not None:
            raise AgentFailed(
                f"the agent's program failed {number} times in a row (agent.max_faults_in_a_row), the last "
                f"time on {group.task.task_id}: {words}\nFix it and run the same command again: the run "
                f"resumes, with every reply that it has."
            )
        if self.faults.is_first(AGENT, words):
            log.warning(
                "the agent's program failed on %s: %s. It is started again (agent.num_fault_retries), then "
                "its trajectory leaves the group. Further faults of this cause are counted, not shown.",
                group.task.task_id,
                words,
            )

    def _is_over(self, group: Group) -> bool:
        return group.state is not GroupState.OPEN or self.state.is_ending

    def _end(self, group: Group, trajectory: Trajectory, session: Session, exit: Exit | None) -> None:
        finish = Finish.LENGTH if session.limit else Finish.STOP
        verdict = _verdict(exit, self.timeout_seconds, has_limit=bool(session.limit))
        score: Score | None = None
        if self.recorder.roles and (verdict is None or verdict.outcome is not Outcome.FAULT):
            refused = verdict or over_limit(session.limit)
            score = _score_by_role(trajectory, finish, _scores(exit), refused, self.shaping)
        elif verdict is not None:
            score = self.shaping.of(score_of(verdict), trajectory, finish)
        decode = self.recorder.replies.codec.decode
        texts = {
            line.trajectory_id: storable(decode(line.answer_tokens())) for line in judged_lines(trajectory)
        }
        self.queue.end(group, trajectory, finish, score, storable(decode(trajectory.answer_tokens())), texts)


def _judged(score: float) -> Verdict:
    return Verdict(Outcome.CORRECT if score >= 1.0 else Outcome.WRONG, score, method="agent")


def _score_by_role(
    trajectory: Trajectory, finish: Finish, given: Mapping[str, float], otherwise: Verdict, shaping: Shaping
) -> Score:
    """Each conversation has the score of its role, or the verdict `otherwise`, shaped by its own length. The
    named scores of the whole are those of the roles."""
    lines = judged_lines(trajectory)
    if not lines:
        return shaping.of(score_of(no_answer("no role spoke")), trajectory, finish)
    spoke = sorted({line.role for line in lines})
    verdicts = {role: _judged(given[role]) if role in given else otherwise for role in spoke}
    scores = {line.trajectory_id: shaping.of(score_of(verdicts[line.role]), line, finish) for line in lines}
    named = {role: verdict.score for role, verdict in verdicts.items() if verdict.score is not None}
    return replace(joint_score(trajectory, scores), scores=named)


def _scores(exit: Exit | None) -> Mapping[str, float]:
    """Those that it gave to roles."""
    return exit.score if exit is not None and isinstance(exit.score, Mapping) else {}


def _verdict(exit: Exit | None, timeout_seconds: float, *, has_limit: bool) -> Verdict | None:
    """None: the row's verifier judges, or each role has a score of its own."""
    if exit is None:
        return over_limit(
            f"the agent needed more than {timeout_seconds:g} s of its own (agent.timeout_seconds)"
        )
    if exit.code != 0 and not has_limit:
        return fault(f"agent: {_ended_badly(exit)}")
    return _judged(exit.score) if isinstance(exit.score, float) else None


def _ended_badly(exit: Exit) -> str:
    ending = f"signal {-exit.code}" if exit.code < 0 else f"exit code {exit.code}"
    return f"it ended with {ending}. {exit.detail}".rstrip()
