"""The worker's end of a keeper, and one run below it (keeper.py is the other end).

A run is killed through the pidfd of its first process; the keeper then ends the rest and reports as always.
A keeper that does not is killed, and its whole namespace with it: our own failure, never a result."""

import contextlib
import signal
import socket
import time
from typing import Any

from sandbox import box, keeper
from sandbox.jailed_process import JailedProcess
from sandbox.result import SandboxError, Status
from sandbox.running import Running, Usage
from sandbox.zygote_process import ZygoteProcess

_ANSWER_SECONDS = 10.0


class Keeper(JailedProcess):
    """A live keeper. `kill` ends, by the kernel, every process of its namespace with it."""

    def __init__(self, zygote: ZygoteProcess) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_SECONDS)
        with theirs:
            super().__init__(ours, zygote.start_keeper(theirs.fileno()))


class Kept(Running):
    """A run below a keeper. Its pid is the keeper's: the root of all that the run holds."""

    # The keeper reports on a killed run as on any other: without a report it was the keeper that died, and
    # the judge of a linked run may have felt that.
    dies_unreported = False

    def __init__(
        self,
        spec: dict[str, Any],
        stdin: bytes,
        files: list[bytes],
        zygote: ZygoteProcess,
        keeper: Keeper,
    ) -> None:
        super().__init__(spec, stdin, files, zygote)
        self._keeper = keeper
        self._wall_seconds = 0.0
        self._awaits_report = self._is_ended = False
        self._killed_at: float | None = None

    def _clone(self, descriptors: list[int]) -> None:
        order = keeper.ORDER.pack(box.disk_space(self.spec))
        try:
            socket.send_fds(self._keeper.control, [order], descriptors)
        except OSError as error:
            raise SandboxError(f"the keeper does not answer: {error}") from error
        self.pid = self._keeper.pid

    def next_descriptors(self) -> list[int]:
        if not self._is_listening:
            self._is_listening = True
            return [stream.descriptor for stream in self.streams]
        # The keeper holds the report until the run's last process, and with it every pipe, is gone.
        if self._awaits_report or any(stream.is_open for stream in self.streams):
            return []
        self._awaits_report = True
        return [self._keeper.control.fileno()]

    def on_readable(self, descriptor: int) -> bool:
        if descriptor != self._keeper.control.fileno():
            return super().on_readable(descriptor)
        self._hear()
        return not self._is_ended

    @property
    def has_ended(self) -> bool:
        return self._is_ended

    def _hear(self) -> None:
        """Takes the keeper's next message."""
        try:
            message, fds, _, _ = socket.recv_fds(self._keeper.control, keeper.REPORT.size, 1)
        except OSError as error:
            raise SandboxError(f"the keeper does not answer: {error}") from error
        if message == keeper.STARTED:
            (self._pidfd,) = fds
            return
        self._is_ended = True
        # A keeper that hangs up was killed by the machine, for want of memory; `outcome` judges that.
        if message:
            _, self.wait_status, wall, cpu, peak_bytes = keeper.REPORT.unpack(message)
            self._wall_seconds = wall / 1e9
            self._usage = Usage(cpu / 1e9, peak_bytes)

    def kill(self, reason: Status | None, detail: str = "") -> None:
        if self._is_ended or not self.pid:
            return
        if self.killed_for is None:
            self.killed_for, self.detail = reason, detail
        now = time.monotonic()
        self._killed_at = self._killed_at or now
        if now > self._killed_at + _ANSWER_SECONDS:
            raise SandboxError(f"the run's processes outlived SIGKILL by {_ANSWER_SECONDS:g} s")
        if self._pidfd < 0:
            self._hear()
        if not self._is_ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _abandon(self) -> None:
        self._keeper.kill()
        self._is_ended = True

    def _report(self) -> tuple[int, float, list[bytes]] | None:
        self._raise_complaint()
        return None if self.wait_status is None else (self.wait_status, self._wall_seconds, [])
