"""The process at the root of a run, as the worker sees it: what starts, ends and reports on it.

`OwnInit` is a fresh clone of the zygote that lives for one run (box.enter is its code); `KeptInit` is a
keeper, which is the init of one run after another. `running.Running` is the same over either.

A run below a keeper is killed through the pidfd of its first process; the keeper then ends the rest and
reports as always. A keeper that does not is killed, and its whole namespace with it: our own failure, never a
result."""

import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass, field

from sandbox import box, zygote
from sandbox.messages import BoxSpec
from sandbox.result import SandboxError
from sandbox.zygote import Usage
from sandbox.zygote_process import JailedProcess, ZygoteProcess


@dataclass(frozen=True)
class Report:
    """How the program ended, in the init's words."""

    wait_status: int
    wall_seconds: float
    files: list[bytes] = field(default_factory=list)
    """The collected files; one that is missing or too large is empty."""
    left_too_much: bool = False
    """Whether a file held more than box.MAX_COLLECTED_BYTES."""


class OwnInit:
    """An init for one run, a child of the worker; its death is the run's end."""

    dies_unreported = True
    """Whether `kill` ends the process that would report."""

    def __init__(self, zygote: ZygoteProcess, *, is_pausable: bool = False) -> None:
        self._zygote = zygote
        self._is_pausable = is_pausable
        self._pidfd = -1
        self._is_polled = False
        self.pid = 0
        """The root of all that the run holds; 0 before `start`."""
        self.wait_status: int | None = None
        self.usage = Usage()

    @property
    def has_ended(self) -> bool:
        return self.wait_status is not None

    def start(self, spec: BoxSpec, descriptors: list[int]) -> None:
        """Raises SandboxError when the run cannot be started."""
        message = zygote.COLLECT if spec["collect"] else zygote.CLONE
        self.pid = self._zygote.clone(descriptors, zygote.PAUSABLE if self._is_pausable else message)
        self._pidfd = os.pidfd_open(self.pid)

    def next_descriptors(self, *, has_output: bool) -> list[int]:
        """Descriptors to poll from now on; `has_output` while a pipe of the run is open."""
        if self._is_polled:
            return []
        self._is_polled = True
        return [self._pidfd]

    def on_readable(self, descriptor: int) -> bool:
        """Handles a descriptor of its own that is ready; false when it was the last time."""
        self._reap()
        return False

    def kill(self) -> None:
        """Ends everything in the box."""
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
        """`data`: what the report pipe held. None: it was killed before it could report."""
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
        """Gives back what is open; a run that has not ended is ended."""
        if self.pid and not self.has_ended:
            self.kill()
            self._reap()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


_ANSWER_SECONDS = 10.0


class Keeper(JailedProcess):
    """A live keeper. `kill` ends, by the kernel, every process of its namespace with it."""

    def __init__(self, zygote: ZygoteProcess) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_SECONDS)
        with theirs:
            super().__init__(ours, zygote.start_keeper(theirs.fileno()))


class KeptInit:
    """Like OwnInit, with a keeper as the init. It outlives the run."""

    # The keeper reports on a killed run as on any other: without a report it was the keeper that died, and
    # the judge of a linked run may have felt that.
    dies_unreported = False

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._report: Report | None = None
        self._pidfd = -1
        self._awaits_report = False
        self._killed_at: float | None = None
        self.pid = 0
        self.has_ended = False
        self.usage = Usage()

    @property
    def wait_status(self) -> int | None:
        return None if self._report is None else self._report.wait_status

    def start(self, spec: BoxSpec, descriptors: list[int]) -> None:
        order = zygote.RUN_ORDER.pack(box.disk_space(spec))
        try:
            socket.send_fds(self._keeper.control, [order], descriptors)
        except OSError as error:
            raise SandboxError(f"the keeper does not answer: {error}") from error
        self.pid = self._keeper.pid

    def next_descriptors(self, *, has_output: bool) -> list[int]:
        # The keeper holds the report until the run's last process, and with it every pipe, is gone.
        if self._awaits_report or has_output:
            return []
        self._awaits_report = True
        return [self._keeper.control.fileno()]

    def on_readable(self, descriptor: int) -> bool:
        self._hear()
        return not self.has_ended

    def _hear(self) -> None:
        """Takes the keeper's next message."""
        try:
            message, fds, _, _ = socket.recv_fds(self._keeper.control, zygote.RUN_REPORT.size, 1)
        except OSError as error:
            raise SandboxError(f"the keeper does not answer: {error}") from error
        if message == zygote.RUN_STARTED:
            (self._pidfd,) = fds
            return
        self.has_ended = True
        # A keeper that hangs up was killed by the machine, for want of memory; `outcome` judges that.
        if message:
            _, status, wall, cpu, peak_bytes = zygote.RUN_REPORT.unpack(message)
            self._report = Report(status, wall / 1e9)
            self.usage = Usage(cpu / 1e9, peak_bytes)

    def kill(self) -> None:
        now = time.monotonic()
        self._killed_at = self._killed_at or now
        if now > self._killed_at + _ANSWER_SECONDS:
            raise SandboxError(f"the run's processes outlived SIGKILL by {_ANSWER_SECONDS:g} s")
        if self._pidfd < 0:
            self._hear()
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def report(self, data: bytes) -> Report | None:
        return self._report

    def close(self) -> None:
        if self.pid and not self.has_ended:
            self._keeper.kill()
            self.has_ended = True
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
