"""Trajectories that agents make: each starts the user's program, which calls the model and ends.

The program is the user's code. Where it ends with another code than 0, or a signal, that is a fault: it is
started again, and in the end its trajectory has no score. Time is the response's: a program over
agent.timeout_seconds, waits for the model left out, makes the trajectory wrong. A program that a limit
refused a call (context, tokens, calls) may end as it likes: the verifier judges what there is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from asyncrl.loops.run_phase import RunPhase
from asyncrl.loops.waits import Waits
from asyncrl.records import Finish, Score, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.agents.recorder import CallRecorder
from asyncrl.rollout.agents.session import Session
from asyncrl.rollout.grade import score_of
from asyncrl.rollout.shaping import Shaping
from asyncrl.turns.agents.program import Access, Exit, Program, Programs
from verifiers.storable import storable
from verifiers.verdict import Outcome, Verdict, fault, over_limit


@dataclass
class AgentPlayer:
    """As `Generator.run`, for trajectories that an agent makes."""

    queue: ReplayQueue
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
    num_faults: int = 0
    """Programs that crashed since the start, those that were started again too."""
    num_late: int = 0
    """Programs that were over their time since the start."""
    _places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.max_agents)

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
            async with self._places:
                if not self._is_over(group):
                    with Session(self.recorder, group, trajectory) as session:
                        is_over = await self._attempts(group, trajectory, session)
        finally:
            ended.put_nowait(trajectory if is_over else None)

    async def _attempts(self, group: Group, trajectory: Trajectory, session: Session) -> bool:
        """Whether the trajectory is over; False where the run ends or the group was dropped."""
        try:
            for attempt in range(self.num_fault_retries + 1):
                if attempt:
                    await session.restart()
                exit = await self._run_program(group, session)
                while exit is not None and exit.is_lost and not self._is_over(group):
                    # Once at most: what is lost is started alone.
                    await session.restart()
                    exit = await self._run_program(group, session)
                await session.stop()
                if session.failure is not None:
                    raise session.failure
                if self._is_over(group):
                    return False
                if exit is None:
                    self.num_late += 1
                    break
                if exit.code == 0 or session.limit:
                    break
                self.num_faults += 1
        finally:
            await session.stop()
        session.keep_answered()
        self._end(group, trajectory, session, exit)
        return True

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
            awaited = (lambda: is_done() or not session.has_call()) if has_call else is_done
            await self.waits.wait_until(
                awaited,
                owner=f"a trajectory of group {group.group_id}",
                blocker="its agent",
                timeout_seconds=None if has_call else left,
            )

    def _is_over(self, group: Group) -> bool:
        return group.state is not GroupState.OPEN or self.state.is_ending

    def _end(self, group: Group, trajectory: Trajectory, session: Session, exit: Exit | None) -> None:
        finish = Finish.LENGTH if session.limit else Finish.STOP
        verdict = _verdict(exit, self.timeout_seconds, has_limit=bool(session.limit))
        score: Score | None = None
        if verdict is not None:
            score = self.shaping.of(score_of(verdict), trajectory, finish)
        text = storable(self.recorder.replies.codec.decode(trajectory.answer_tokens()))
        self.queue.end(group, trajectory, finish, score, text)


def _verdict(exit: Exit | None, timeout_seconds: float, *, has_limit: bool) -> Verdict | None:
    """None: the row's verifier judges."""
    if exit is None:
        return over_limit(
            f"the agent needed more than {timeout_seconds:g} s of its own (agent.timeout_seconds)"
        )
    if exit.code != 0 and not has_limit:
        return fault(f"agent: it ended with {_ending(exit.code)}. {exit.detail}".rstrip())
    if exit.score is None:
        return None
    outcome = Outcome.CORRECT if exit.score >= 1.0 else Outcome.WRONG
    return Verdict(outcome, exit.score, method="agent")


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
