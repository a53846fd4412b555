"""The worker's end of a keeper, and of one run below it (keeper.py is the other end).

A run is killed through the pidfd of its first process; the keeper then ends the rest and reports as always.
A keeper that does not is killed, and its whole namespace with it: our own failure, never a result."""

import contextlib
import os
import signal
import socket
import time

from sandbox import box, keeper
from sandbox.init import Report, Usage
from sandbox.jailed_process import JailedProcess
from sandbox.messages import BoxSpec
from sandbox.result import SandboxError
from sandbox.zygote_process import ZygoteProcess

_ANSWER_SECONDS = 10.0


class Keeper(JailedProcess):
    """A live keeper. `kill` ends, by the kernel, every process of its namespace with it."""

    def __init__(self, zygote: ZygoteProcess) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_SECONDS)
        with theirs:
            super().__init__(ours, zygote.start_keeper(theirs.fileno()))


class KeptInit:
    """A keeper as the init of one run. It outlives the run; its pid is the root of all that the run holds."""

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
        order = keeper.ORDER.pack(box.disk_space(spec))
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
            message, fds, _, _ = socket.recv_fds(self._keeper.control, keeper.REPORT.size, 1)
        except OSError as error:
            raise SandboxError(f"the keeper does not answer: {error}") from error
        if message == keeper.STARTED:
            (self._pidfd,) = fds
            return
        self.has_ended = True
        # A keeper that hangs up was killed by the machine, for want of memory; `outcome` judges that.
        if message:
            _, status, wall, cpu, peak_bytes = keeper.REPORT.unpack(message)
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
