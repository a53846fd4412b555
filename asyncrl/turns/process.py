"""An episode's process as the pool sees it: a request, its limits, and what its death means.

A turn has its time and memory; what it uses up is the response's doing (TurnLimit). Time in which the machine
kept the process from its CPUs is not counted. Whatever else ends a request is a fault of what is hosted."""

import asyncio
import time
from typing import Any

from asyncrl.turns.episode import EnvironmentFault, TurnLimit
from asyncrl.turns.host import Failure
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
