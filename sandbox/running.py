"""One box as the worker sees it: a pid, pipes with bounded buffers, a deadline, and the verdict on how it
ended."""

import contextlib
import fcntl
import os
import resource
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any

from sandbox import box, watch
from sandbox.result import SandboxError, Status
from sandbox.zygote_process import ZygoteProcess

_CHUNK = 1 << 16
_F_ADD_SEALS, _SEALS = 1033, 0b1111
"""No more seals, no shrinking, no growing, no writing (fcntl(2))."""
_REPORT_LIMIT = 1 << 27
_MEMORY_WORDS = (b"MemoryError", b"std::bad_alloc", b"Cannot allocate memory", b"cannot allocate memory")


def _filled_memory_file(parts: list[bytes]) -> int:
    descriptor = os.memfd_create("asyncrl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        # A program must not make room of it, which nobody would count.
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@dataclass
class Usage:
    """CPU time and largest resident memory of all processes that were reaped."""

    cpu_seconds: float = 0.0
    peak_bytes: int = 0

    def add(self, found: resource.struct_rusage) -> None:
        """Counts one process, and those that it had waited for."""
        self.cpu_seconds += found.ru_utime + found.ru_stime
        self.peak_bytes = max(self.peak_bytes, found.ru_maxrss * 1024)


class Stream:
    """The worker's end of one pipe. Reads at most `limit` bytes more than it keeps."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.is_open = True
        self.overflowed = False
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0

    def read(self) -> None:
        """Takes what is there; notes the end."""
        try:
            chunk = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            # The program has opened its own end for reading, and took what was there: its loss.
            return
        if not chunk:
            self.is_open = False
            return
        room = self._limit - self._size
        self.overflowed = self.overflowed or len(chunk) > room
        self._chunks.append(chunk[:room])
        self._size += len(chunk[:room])

    def close(self) -> None:
        """Gives the descriptor back; once."""
        self.is_open = False
        os.close(self.descriptor)

    def content(self) -> bytes:
        """All that was kept."""
        return b"".join(self._chunks)


class Running:
    """A box from its start to its reaping. The caller polls `descriptors` and calls `on_readable`."""

    dies_unreported = True
    """Whether `kill` ends who would report."""

    def __init__(self, spec: dict[str, Any], stdin: bytes, files: list[bytes], zygote: ZygoteProcess) -> None:
        self.spec = spec
        self.limits: dict[str, Any] = spec["limits"]
        self.killed_for: Status | None = None
        self.was_dismissed = False
        self.detail = ""
        self.pid = 0
        self.wait_status: int | None = None
        self.started = time.monotonic()
        self.seen_cpu = watch.CpuTimes()
        self._stdin, self._files, self._zygote = stdin, files, zygote
        self._is_listening = self._left_too_much = False
        self._pidfd = -1
        self._usage = Usage()
        self.streams: list[Stream] = []

    def start(self, link: socket.socket | None) -> None:
        """Raises SandboxError when the box cannot be started."""
        given: list[int] = []
        try:
            given.append(_filled_memory_file([box.pack_spec(self.spec), *self._files]))
            given.append(_filled_memory_file([self._stdin]))
            for limit in (self.limits["output_bytes"], self.limits["output_bytes"], _REPORT_LIMIT):
                ours, theirs = os.pipe()
                self.streams.append(Stream(ours, limit))
                given.append(theirs)
                os.set_blocking(ours, False)
                # As another user, a program may write to /dev/stdout and /dev/stderr, and not read there. As
                # the same user it can give itself the right to read what it wrote, and nothing else.
                os.fchmod(theirs, 0o222)
            descriptors = given if link is None else [*given, link.fileno()]
            self.started = time.monotonic()
            self._clone(descriptors)
        finally:
            for descriptor in given:
                os.close(descriptor)

    def _clone(self, descriptors: list[int]) -> None:
        self.pid = self._zygote.clone(descriptors, collects=bool(self.spec["collect"]))
        self._pidfd = os.pidfd_open(self.pid)

    @property
    def num_stdin_bytes(self) -> int:
        return len(self._stdin)

    @property
    def deadline(self) -> float:
        return self.started + float(self.limits["wall_seconds"])

    @property
    def has_ended(self) -> bool:
        return self.wait_status is not None

    def next_descriptors(self) -> list[int]:
        """What is to be polled from now on; asked once the box has started and after each `on_readable`."""
        if self._is_listening:
            return []
        self._is_listening = True
        return [*(stream.descriptor for stream in self.streams), self._pidfd]

    def on_readable(self, descriptor: int) -> bool:
        """Handles one ready descriptor; false when it was the last time for this one."""
        if descriptor == self._pidfd:
            self._reap()
            return False
        stream = next(stream for stream in self.streams if stream.descriptor == descriptor)
        stream.read()
        if stream.overflowed:
            self.kill(Status.OUTPUT_LIMIT, f"wrote more than {self.limits['output_bytes']} bytes")
        return stream.is_open

    def dismiss(self) -> None:
        """Ends a box that nobody waits for any more; that says nothing about its program."""
        # One that has ended without a report was not ended by us: a fault, which the other box may have felt.
        self.was_dismissed = self.was_dismissed or not self.has_ended
        self.kill(None)

    def kill(self, reason: Status | None, detail: str = "") -> None:
        """Ends everything in the box; the first reason counts."""
        if self.has_ended or not self.pid:
            return
        if self.killed_for is None:
            self.killed_for, self.detail = reason, detail
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        # Not reaped yet, so that the group's number cannot be another's: outside of a pid namespace,
        # descendants that outlive the init are in its process group, and this process has adopted them.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _, self.wait_status, found = os.wait4(self.pid, 0)
        self._usage.add(found)
        with contextlib.suppress(ChildProcessError):
            while True:
                # What the program did not wait for counts as well.
                self._usage.add(os.wait4(-self.pid, 0)[2])

    def close(self) -> None:
        """Gives back what is open; the box must have ended or never begun."""
        for stream in self.streams:
            stream.close()
        self.streams = []
        if self.pid and not self.has_ended:
            self._abandon()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _abandon(self) -> None:
        self.dismiss()
        self._reap()

    def _raise_complaint(self) -> None:
        data = self.streams[2].content()
        if data.startswith(b"E"):
            raise SandboxError(f"the box could not be set up: {data[1:400].decode(errors='replace')}")

    def _report(self) -> tuple[int, float, list[bytes]] | None:
        """(wait status, wall seconds, collected files) by the init, or None: it was killed before it
        could."""
        self._raise_complaint()
        data = self.streams[2].content()
        if len(data) < box.REPORT.size:
            return None
        _, status, nanoseconds = box.REPORT.unpack_from(data)
        offset, files = box.REPORT.size, []
        while offset + box.LENGTH.size <= len(data):
            (size,) = box.LENGTH.unpack_from(data, offset)
            offset += box.LENGTH.size
            self._left_too_much = self._left_too_much or size == box.TOO_LARGE
            files.append(data[offset : offset + max(size, 0)])
            offset += max(size, 0)
        return status, nanoseconds / 1e9, files

    def outcome(self, *, oom_killed: bool, unsafe: bool) -> tuple[dict[str, Any], list[bytes]]:
        """The fields of the Result and its blobs: stdout, stderr, files. Raises SandboxError for our own
        failure."""
        report = self._report()
        # A process whose parent ignores its end is counted by nobody but those who saw it run.
        seconds = max(self._usage.cpu_seconds, self.seen_cpu.seconds)
        wall = time.monotonic() - self.started if report is None else report[1]
        status, detail, code, number = self.killed_for, self.detail, None, None
        if oom_killed and status is None:
            status, detail = Status.MEMORY_LIMIT, "the kernel ended a process of the run for want of memory"
        if report is not None:
            code, number = _decode(report[0])
        elif status is None:
            # Only the machine's own memory shortage, or in the unsafe mode the program, can kill an init.
            if not unsafe and not (self.was_dismissed and self.dies_unreported):
                raise SandboxError(f"the box's init ended without a report (wait status {self.wait_status})")
            code, number = _decode(self.wait_status or 0)
        if status is None:
            status, detail = self._judge(code, number, seconds)
        fields = {
            "status": status,
            "detail": detail,
            "exit_code": code,
            "signal": number,
            "cpu_seconds": round(seconds, 6),
            "wall_seconds": round(wall, 6),
            "peak_memory_bytes": self._usage.peak_bytes,
        }
        return fields, [self.streams[0].content(), self.streams[1].content(), *(report[2] if report else [])]

    def _judge(self, code: int | None, number: int | None, seconds: float) -> tuple[Status, str]:
        allowed = float(self.limits["cpu_seconds"])
        if number == signal.SIGXCPU or seconds > allowed:
            return Status.TIME_LIMIT, f"used {seconds:.2f} s of CPU time; {allowed:g} s are allowed"
        ran_out = any(word in self.streams[1].content()[-4096:] for word in _MEMORY_WORDS)
        if (code or number) and ran_out:
            return (
                Status.MEMORY_LIMIT,
                f"more than {self.limits['memory_bytes']} bytes of memory were asked for",
            )
        if self._left_too_much:
            allowed_bytes = box.MAX_COLLECTED_BYTES
            return Status.OUTPUT_LIMIT, f"left a file of more than {allowed_bytes} bytes"
        if number is not None:
            return Status.SIGNAL, f"ended by {_signal_name(number)}"
        if code:
            return Status.WRONG_EXIT, f"exit code {code}"
        return Status.OK, ""


def _decode(wait_status: int) -> tuple[int | None, int | None]:
    """(exit code, signal), one of them None."""
    value = os.waitstatus_to_exitcode(wait_status)
    return (value, None) if value >= 0 else (None, -value)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
