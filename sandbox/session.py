"""A Python session: an interpreter that lives in a box of its own and runs one text of code after another.

Use as `with Session.open() as session: session.run("1 + 1")`. Whatever the code does is a SessionResult in
words; SandboxError means that the sandbox itself failed, SessionRefused that this machine has no isolation.
Blocks; one caller at a time. The session ends, with every process and file of it, when it is closed, when the
process that opened it ends, however it ends, or when `run` is interrupted."""

import functools
import socket
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

from sandbox import console, frames
from sandbox.command import MEBIBYTE, Limits
from sandbox.messages import LimitFields, SessionOrder, WorkerSettings
from sandbox.result import SandboxError, Tier, refusal
from sandbox.settings import SandboxSettings, WorkerProcess, choose_interpreter, worker_settings

_START_SECONDS = 120.0
_GRACE_SECONDS = 120.0
_NO_CLOCK_SECONDS = 1e9
_LEAST_MEMORY_BYTES = 64 * MEBIBYTE


class SessionRefused(SandboxError):
    """No tier of isolation can be had on this machine; the message says why."""


@dataclass(frozen=True)
class SessionLimits:
    """Bounds of one session; all but those per call are for all its calls together."""

    call_seconds: float = 10.0
    """Time on the clock of one call."""
    total_seconds: float = 300.0
    """Time on the clock in all calls; between them no time passes for the session."""
    cpu_seconds: float = 120.0
    """CPU time of all processes together, at least 1."""
    memory_bytes: int = 512 * MEBIBYTE
    """Address space of each process, and resident memory of all together; at least 64 MiB."""
    disk_bytes: int = 64 * MEBIBYTE
    """All files together; they live in memory and vanish with the interpreter."""
    processes: int = 32
    """Processes and threads alive at once."""
    excerpt_bytes: int = 16 << 10
    """Kept of what a call writes: the head and the tail, half each."""

    def __post_init__(self) -> None:
        self.for_box()
        for name, value in (
            ("call_seconds", self.call_seconds),
            ("total_seconds", self.total_seconds),
            ("excerpt_bytes", self.excerpt_bytes),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
                raise ValueError(f"limit {name} is {value!r}; expected a number above 0 and below 1e9")
        if self.memory_bytes < _LEAST_MEMORY_BYTES:
            raise ValueError(
                f"limit memory_bytes is {self.memory_bytes}; expected at least {_LEAST_MEMORY_BYTES}, which "
                f"an interpreter needs"
            )
        if self.cpu_seconds < 1:
            raise ValueError(f"limit cpu_seconds is {self.cpu_seconds}; expected at least 1")

    def for_box(self) -> Limits:
        """Limits that a box is told. Raises ValueError."""
        return Limits(
            cpu_seconds=self.cpu_seconds,
            wall_seconds=_NO_CLOCK_SECONDS,
            memory_bytes=self.memory_bytes,
            stack_bytes=64 * MEBIBYTE,
            processes=self.processes,
            disk_bytes=self.disk_bytes,
        )


@dataclass(frozen=True)
class SessionResult:
    """One call."""

    stdout: str = ""
    """Standard output and error, in the order in which they were written; with a mark where the middle was
    left out."""
    value: str | None = None
    """repr of the last statement's value, where that is an expression and not None."""
    traceback: str = ""
    """The exception that ended the code, with the code's own frames only."""
    num_threads: int = 0
    """Threads that the code has left running; they stand still between calls."""
    limit: str = ""
    """Which limit ended the call, or left nothing for it."""
    lost: str = ""
    """Why the interpreter is gone, and every variable with it; the next call has a new one."""
    seconds: float = 0.0
    """On the clock."""


class Session:
    """An open session; see the module."""

    def __init__(self, worker: WorkerProcess, tier: Tier, limits: SessionLimits) -> None:
        self._worker = worker
        self._limits = limits
        self._is_open = True
        self.tier = tier

    @classmethod
    def open(
        cls,
        limits: SessionLimits | None = None,
        *,
        is_fresh: bool = False,
        seed: int = 0,
        settings: SandboxSettings | None = None,
    ) -> Self:
        """A session whose first interpreter waits for code, in the first tier that can be had.

        is_fresh: each call has an interpreter and files of its own. seed: of `random` and `numpy.random`, at
        the start of each interpreter. Raises SessionRefused, and ValueError for an interpreter that cannot be
        run."""
        limits, settings = limits or SessionLimits(), settings or SandboxSettings()
        order: SessionOrder = {
            "limits": cast(LimitFields, asdict(limits.for_box())),
            "call_seconds": limits.call_seconds,
            "total_seconds": limits.total_seconds,
            "excerpt_bytes": limits.excerpt_bytes,
            "is_fresh": is_fresh,
            "seed": seed,
        }
        reasons: dict[Tier, str] = {}
        for tier in settings.all_tiers:
            try:
                python, _ = choose_interpreter(settings, tier)
                told = worker_settings(settings, tier, python)
                return cls(_started(settings.command, told, order), tier, limits)
            except SandboxError as error:
                reasons[tier] = str(error)
        raise SessionRefused(refusal(reasons))

    def run(self, code: str) -> SessionResult:
        """Runs code after that of earlier calls, or on its own in a fresh session.

        Raises SandboxError when the sandbox fails; the session is closed then."""
        content = code.encode("utf-8", "surrogatepass")
        if len(content) > console.MAX_CODE_BYTES:
            known = f"{len(content)} bytes; at most {console.MAX_CODE_BYTES} are allowed"
            return SessionResult(limit=f"the code has {known}")
        if not self._is_open:
            raise SandboxError("the session is closed")
        try:
            self._worker.line.sendall(frames.pack({}, [content]))
            answer = _receive(self._worker.line, self._limits.call_seconds + _GRACE_SECONDS)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise SandboxError(f"the session's worker is gone: {error or 'time-out'}") from error
            raise
        if "error" in answer:
            self.close()
            raise SandboxError(str(answer["error"]))
        return SessionResult(**answer)

    def close(self) -> None:
        """Ends the session and waits until nothing is left of it. May be called again."""
        if self._is_open:
            self._is_open = False
            self._worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _receive(line: socket.socket, timeout_seconds: float) -> dict[str, Any]:
    line.settimeout(timeout_seconds)
    return frames.receive(functools.partial(frames.read_exactly, line))[0]


def _started(command: tuple[str, ...], told: WorkerSettings, order: SessionOrder) -> WorkerProcess:
    """A worker with an interpreter up. Raises SandboxError."""
    worker = WorkerProcess(command)
    try:
        worker.line.sendall(frames.pack({**told, "session": order}))
        hello = _receive(worker.line, _START_SECONDS)
        if "error" in hello:
            raise SandboxError(str(hello["error"]))
    except BaseException as error:
        worker.kill()
        if isinstance(error, OSError):
            raise SandboxError(f"the session's worker did not start: {error or 'time-out'}") from error
        raise
    return worker
