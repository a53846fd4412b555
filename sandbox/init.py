"""The process at the root of a run, as the worker sees it: what starts, ends and reports on it.

`OwnInit` is a fresh clone of the zygote that lives for one run (box.enter is its code); `kept.KeptInit` is a
keeper, which is the init of one run after another. `running.Running` is the same over either."""

import contextlib
import os
import resource
import signal
from dataclasses import dataclass, field
from typing import Protocol

from sandbox import box, zygote
from sandbox.messages import BoxSpec
from sandbox.zygote_process import ZygoteProcess


@dataclass
class Usage:
    """CPU time and largest resident memory of all processes that were reaped."""

    cpu_seconds: float = 0.0
    peak_bytes: int = 0

    def add(self, found: resource.struct_rusage) -> None:
        """Counts one process, and those that it had waited for."""
        self.cpu_seconds += found.ru_utime + found.ru_stime
        self.peak_bytes = max(self.peak_bytes, found.ru_maxrss * 1024)


@dataclass(frozen=True)
class Report:
    """How the program ended, in the init's words."""

    wait_status: int
    wall_seconds: float
    files: list[bytes] = field(default_factory=list)
    """The collected files; one that is missing or too large is empty."""
    left_too_much: bool = False
    """Whether a file held more than box.MAX_COLLECTED_BYTES."""


class Init(Protocol):
    """Starts one run, then belongs to it."""

    dies_unreported: bool
    """Whether `kill` ends the process that would report."""
    usage: Usage

    @property
    def pid(self) -> int:
        """The root of all that the run holds; 0 before `start`."""

    @property
    def wait_status(self) -> int | None: ...

    @property
    def has_ended(self) -> bool: ...

    def start(self, spec: BoxSpec, descriptors: list[int]) -> None:
        """Raises SandboxError when the run cannot be started."""

    def next_descriptors(self, *, has_output: bool) -> list[int]:
        """Descriptors to poll from now on; `has_output` while a pipe of the run is open."""

    def on_readable(self, descriptor: int) -> bool:
        """Handles a descriptor of its own that is ready; false when it was the last time."""

    def kill(self) -> None:
        """Ends everything in the box."""

    def report(self, data: bytes) -> Report | None:
        """`data`: what the report pipe held. None: it was killed before it could report."""

    def close(self) -> None:
        """Gives back what is open; a run that has not ended is ended."""


class OwnInit:
    """An init for one run, a child of the worker; its death is the run's end."""

    dies_unreported = True

    def __init__(self, zygote: ZygoteProcess, *, is_pausable: bool = False) -> None:
        self._zygote = zygote
        self._is_pausable = is_pausable
        self._pidfd = -1
        self._is_polled = False
        self.pid = 0
        self.wait_status: int | None = None
        self.usage = Usage()

    @property
    def has_ended(self) -> bool:
        return self.wait_status is not None

    def start(self, spec: BoxSpec, descriptors: list[int]) -> None:
        message = zygote.COLLECT if spec["collect"] else zygote.CLONE
        self.pid = self._zygote.clone(descriptors, zygote.PAUSABLE if self._is_pausable else message)
        self._pidfd = os.pidfd_open(self.pid)

    def next_descriptors(self, *, has_output: bool) -> list[int]:
        if self._is_polled:
            return []
        self._is_polled = True
        return [self._pidfd]

    def on_readable(self, descriptor: int) -> bool:
        self._reap()
        return False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        """Stops every process of a pausable box, until `resume`; the two take turns."""
        self._turn(signal.SIGSTOP)

    def resume(self) -> None:
        """Undoes `pause`."""
        self._turn(signal.SIGCONT)

    def _turn(self, outside: signal.Signals) -> None:
        # Not reaped yet, so that neither number can be another's.
        if self.has_ended:
            return
        if self._zygote.is_inside:
            os.kill(self.pid, box.TURN)
        else:
            # No process of the box can leave the group, but in the unsafe tier.
            os.killpg(self.pid, outside)

    def _reap(self) -> None:
        # Not reaped yet, so that the group's number cannot be another's: outside of a pid namespace,
        # descendants that outlive the init are in its process group, and this process has adopted them.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _, self.wait_status, found = os.wait4(self.pid, 0)
        self.usage.add(found)
        with contextlib.suppress(ChildProcessError):
            while True:
                # What the program did not wait for counts as well.
                self.usage.add(os.wait4(-self.pid, 0)[2])

    def report(self, data: bytes) -> Report | None:
        if len(data) < box.REPORT.size:
            return None
        _, status, nanoseconds = box.REPORT.unpack_from(data)
        offset, files, left_too_much = box.REPORT.size, [], False
        while offset + box.LENGTH.size <= len(data):
            (size,) = box.LENGTH.unpack_from(data, offset)
            offset += box.LENGTH.size
            left_too_much = left_too_much or size == box.TOO_LARGE
            files.append(data[offset : offset + max(size, 0)])
            offset += max(size, 0)
        return Report(status, nanoseconds / 1e9, files, left_too_much)

    def close(self) -> None:
        if self.pid and not self.has_ended:
            self.kill()
            self._reap()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
