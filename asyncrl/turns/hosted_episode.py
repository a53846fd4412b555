"""One trajectory's environment and tools in a process of their own, which is replaced when a tool is late.

A turn has its time and memory; what it uses up is the response's doing (TurnLimit). Time in which the machine
kept the process from its CPUs is not counted. Whatever else ends a request is a fault of what is hosted."""

import asyncio
import contextlib
import difflib
import json
import pickle
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.turns.calls import Call, CallResult
from asyncrl.turns.environment import End, Message, Observation, Recovery
from asyncrl.turns.episode import EnvironmentFault, Recoveries, TurnLimit
from asyncrl.turns.host import CALL, CLOSE, START, STEP, Cast, Failure
from asyncrl.turns.replies import unpack_reply
from sandbox import frames
from verifiers.template import Ended, Template, Worker

_MAX_STRETCH = 5.0
"""Multiple of its limit after which a request ends, however busy the machine is."""
_STARVED_SHARE = 0.5
_GRACE_SECONDS = 0.05
"""For an answer that is there while this process was too busy to read it."""


class Late(Exception):
    """No answer within the time limit: the process must be ended."""


class EpisodeProcess(Worker):
    template: "Template[EpisodeProcess]"
    """The one that forked it, which notes it here."""

    async def ask(self, request: str, body: bytes, *, seconds: float, name: str = "") -> Any:
        """The result of a request to `asyncrl.turns.host`; `name`: the tool of a CALL.

        Raises EnvironmentFault, TurnLimit for a limit that a STEP or CALL met, ToolError, Late, and OSError
        or IncompleteReadError when the process died."""
        message = frames.pack({"request": request, "name": name}, [body])
        answer = await self._within(seconds, message)
        try:
            header, _ = answer
            if "result" in header:
                return header["result"]
            failure, detail, trace = Failure(header["failure"]), str(header["detail"]), str(header["trace"])
        except (KeyError, ValueError) as error:
            raise EnvironmentFault(f"its process answered what cannot be read: {error}") from error
        match failure:
            case Failure.LIMIT:
                raise TurnLimit(f"{detail}: this turn took more than it may (turns.memory_mib)")
            case Failure.TOOL:
                raise ToolError(detail)
        raise EnvironmentFault(detail, trace)

    async def _within(self, seconds: float, message: bytes) -> frames.Message:
        began, starved = time.monotonic(), self._starved_seconds()
        reply = asyncio.ensure_future(self.exchange(message))
        try:
            done, _ = await asyncio.wait({reply}, timeout=seconds)
            if not done:
                await self._stretch(reply, began, starved, seconds)
            return reply.result()
        finally:
            if not reply.done():
                reply.cancel()

    async def _stretch(
        self, reply: "asyncio.Future[frames.Message]", began: float, starved: float, seconds: float
    ) -> None:
        """Waits for the reply as long as the process was kept from a CPU since it `began`. Raises Late, or
        EnvironmentFault where the machine is too busy to say."""
        cpu, left = self.cpu_seconds(), _GRACE_SECONDS
        while left > 0:
            done, _ = await asyncio.wait({reply}, timeout=max(left, _GRACE_SECONDS))
            if done:
                return
            passed = time.monotonic() - began
            if passed > _MAX_STRETCH * seconds:
                if self.cpu_seconds() - cpu >= _STARVED_SHARE * seconds:
                    break
                raise EnvironmentFault(f"no answer in {passed:.1f} s: the machine is overloaded")
            left = seconds - (passed - (self._starved_seconds() - starved))
        raise Late

    def _starved_seconds(self) -> float:
        """Time since its start in which it was ready and had no CPU; 0 where the kernel does not say."""
        try:
            with open(f"/proc/{self.process}/schedstat", "rb") as file:
                return int(file.read().split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return 0.0


class ToolError(Exception):
    """A tool raised; the message is for the model."""


def death(ended: Ended | None, process: Worker, memory_bytes: int, *, is_of_response: bool) -> Exception:
    """The error that the end of a process without an answer is."""
    if ended is None:
        return EnvironmentFault("its process is gone")
    if ended.exit_code is not None:
        return EnvironmentFault(f"its process ended by itself, with exit code {ended.exit_code}")
    name, before = ended.signal_name, process.resident_bytes or 0
    if is_of_response and ended.has_used_memory(before, before + memory_bytes):
        return TurnLimit(
            f"{name} ended the process when it had taken {ended.peak_bytes - before} of {memory_bytes} bytes "
            f"(turns.memory_mib)"
        )
    if not ended.frames:
        return EnvironmentFault(f"its process was ended by {name}, which the pool had not sent")
    return EnvironmentFault(f"its process crashed: {name}", ended.frames)


if TYPE_CHECKING:
    from asyncrl.turns.pool import EpisodePool

CLOSE_SECONDS = 2.0
"""For `close` of an environment and its tools, before they are killed."""
NOT_CALLED = "Error: not called, because an earlier call of this turn took all of its time"


class NoEpisode:
    """Without environment and tools: nothing answers, and nothing has a process."""

    recoveries = Recoveries()

    async def start(self, row: Mapping[str, Any]) -> list[Message] | None:
        return None

    async def step(self, text: str) -> Observation | End:
        return End()

    async def call(self, calls: Sequence[Call]) -> list[CallResult]:
        return [_error(call.name, call.error or _unknown(call.name, [])) for call in calls]

    async def close(self) -> None:
        pass


class HostedEpisode:
    def __init__(
        self, pool: "EpisodePool", cast: Cast, process: EpisodeProcess, built: Mapping[str, Any]
    ) -> None:
        self._pool = pool
        self._cast = cast
        self._process: EpisodeProcess | None = process
        tools = {name: Recovery(recovery) for name, recovery in built["tools"].items()}
        self.recoveries = Recoveries(Recovery(built["recovery"]), tools)
        self._closes = bool(built["closes"])
        self._row: bytes | None = None
        self._answered: list[tuple[bytes, Any]] = []
        """Turns that the environment has answered, for a process that replaces this one."""
        self._is_idle = True
        """Whether each request to the process was answered."""
        self._has_place = True

    async def start(self, row: Mapping[str, Any]) -> list[Message] | None:
        if self._cast.environment is None:
            return None
        self._row = pickle.dumps(dict(row))
        opening: list[Message] | None = await self._start(await self._living())
        return opening

    async def step(self, text: str) -> Observation | End:
        if self._cast.environment is None:
            return End()
        body = text.encode("utf-8", "surrogatepass")
        answer = await self._step(await self._living(), body)
        if self.recoveries.tools:
            self._answered.append((body, answer))
        return unpack_reply(answer)

    async def call(self, calls: Sequence[Call]) -> list[CallResult]:
        results: list[CallResult] = []
        deadline = time.monotonic() + self._pool.timeout_seconds
        is_late = False
        for call in calls:
            if is_late:
                results.append(CallResult(call.name, NOT_CALLED, is_error=True, has_lost=True))
                continue
            began = time.monotonic()
            output, is_error, is_late = await self._called(call, max(deadline - began, 0.001))
            has_lost, seconds = self._process is None, time.monotonic() - began
            results.append(CallResult(call.name, output, is_error, seconds, has_lost))
        return results

    async def close(self) -> None:
        try:
            if self._process is not None and self._closes and self._is_idle:
                await self._say_goodbye(self._process)
        finally:
            process, self._process = self._process, None
            try:
                if process is not None:
                    await self._pool.end(process)
            finally:
                if self._has_place:
                    self._has_place = False
                    self._pool.give_back()

    async def _say_goodbye(self, process: EpisodeProcess) -> None:
        """Has what it hosts closed; a process that cannot is killed all the same."""
        # It is killed next, whatever it says.
        with contextlib.suppress(Late, EnvironmentFault, OSError, asyncio.IncompleteReadError):
            await process.ask(CLOSE, b"", seconds=CLOSE_SECONDS)

    async def _start(self, process: EpisodeProcess) -> Any:
        assert self._row is not None
        request = process.ask(START, self._row, seconds=self._pool.start_seconds)
        return await self._watched(process, request, is_of_response=False)

    async def _step(self, process: EpisodeProcess, body: bytes) -> Any:
        request = process.ask(STEP, body, seconds=self._pool.timeout_seconds)
        try:
            return await self._watched(process, request, is_of_response=True)
        except Late:
            raise TurnLimit(
                f"the environment took more than {self._pool.timeout_seconds:g} s for a turn "
                f"(turns.timeout_seconds)"
            ) from None

    async def _called(self, call: Call, seconds: float) -> tuple[str, bool, bool]:
        """(output, whether it is an error, whether the turn's time is used up)."""
        if call.error:
            return f"Error: {call.error}", True, False
        if call.name not in self.recoveries.tools:
            return f"Error: {_unknown(call.name, list(self.recoveries.tools))}", True, False
        try:
            body = json.dumps(call.arguments).encode()
        except (RecursionError, ValueError, TypeError) as error:
            return f"Error: the arguments cannot be read: {error}", True, False
        process = await self._living()
        request = process.ask(CALL, body, seconds=seconds, name=call.name)
        try:
            return await self._watched(process, request, is_of_response=True), False, False
        except ToolError as error:
            return f"Error: {error}", True, False
        except TurnLimit as error:
            return f"Error: {error}{self._lost()}", True, False
        except Late:
            limit = self._pool.timeout_seconds
            return f"Error: no answer within {limit:g} s (the limit of a turn){self._lost()}", True, True

    def _lost(self) -> str:
        """Words for the model where the process was ended."""
        return "" if self._process is not None else ". The tools were started again and have lost their state"

    async def _watched(self, process: EpisodeProcess, request: Any, *, is_of_response: bool) -> Any:
        self._is_idle = False
        try:
            found = await self._pool.watched(process, request, is_of_response=is_of_response)
            self._is_idle = True
            return found
        except (EnvironmentFault, TurnLimit, ToolError):
            self._is_idle = True
            raise
        finally:
            if not process.is_alive:
                self._process = None

    async def _living(self) -> EpisodeProcess:
        """The process; another one, brought to the same point, where a tool was killed with it."""
        if self._process is not None:
            return self._process
        if not self._has_place:
            raise EnvironmentFault("the episode is closed")
        if self._answered and self.recoveries.environment is Recovery.NEITHER:
            raise EnvironmentFault(
                f"a tool was killed with the process after {len(self._answered)} turns, and the environment "
                f"says that it cannot be played again (recovery)"
            )
        process, _ = await self._pool.fork(self._cast)
        self._process = process
        if self._row is not None:
            await self._start(process)
        if self.recoveries.environment is Recovery.REPLAYABLE:
            for body, answer in self._answered:
                if await self._step(process, body) != answer:
                    raise EnvironmentFault(
                        "a tool was killed with the process, and the environment answers the same turns "
                        "otherwise: one that depends on chance or time must say so (recovery)"
                    )
        return process


def _error(name: str, words: str) -> CallResult:
    return CallResult(name, f"Error: {words}", is_error=True)


def _unknown(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"there is no tool {name[:100]!r}.{hint} Tools: {', '.join(known) or 'none'}."
