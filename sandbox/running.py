"""One box as the worker sees it: pipes with bounded buffers, a deadline, and the verdict on how it ended.

Its init (init.py) starts it and tells of its end."""

import fcntl
import os
import signal
import socket
import time

from sandbox import box, watch
from sandbox.command import Limits
from sandbox.init import KeptInit, OwnInit, Report
from sandbox.messages import BoxSpec
from sandbox.result import Result, SandboxError, Status, Tier

_CHUNK = 1 << 16
_MARK = "\n[... {} bytes were left out here ...]\n"


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
        # A program must not make room of it, which would not be counted.
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Stream:
    """The worker's end of one pipe. Keeps the first `head_bytes` of what it carries and the last
    `tail_bytes`."""

    def __init__(self, descriptor: int, head_bytes: int, tail_bytes: int = 0) -> None:
        self.descriptor = descriptor
        self.is_open = True
        self.num_omitted = 0
        """Bytes between head and tail that were dropped."""
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes
        self._head, self._tail = bytearray(), bytearray()

    def read(self) -> None:
        """Takes what is there; notes the end."""
        try:
            chunk = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            # The program has opened its own end for reading, and took what was there: its loss.
            return
        if not chunk:
            self.is_open = False
        self.add(chunk)

    def add(self, chunk: bytes) -> None:
        """Appends it, and drops what has come to lie in the middle."""
        room = self._head_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        dropped = max(0, len(self._tail) - self._tail_bytes)
        self.num_omitted += dropped
        del self._tail[:dropped]

    def close(self) -> None:
        """Gives the descriptor back; once."""
        self.is_open = False
        os.close(self.descriptor)

    def content(self) -> bytes:
        """All that was kept."""
        return bytes(self._head + self._tail)

    def take(self) -> str:
        """All text kept so far, with a mark where some was left out. The buffer is empty afterwards."""
        head, tail, num_omitted = self._head, self._tail, self.num_omitted
        self._head, self._tail, self.num_omitted = bytearray(), bytearray(), 0
        if not num_omitted:
            return (head + tail).decode(errors="replace")
        # The cut may have halved a character on either side.
        before, after = head.decode(errors="replace"), tail.decode(errors="replace")
        return before.rstrip("\ufffd") + _MARK.format(num_omitted) + after.lstrip("\ufffd")


class Running:
    """A box from its start to its reaping. The caller polls `descriptors` and calls `on_readable`."""

    def __init__(
        self,
        spec: BoxSpec,
        stdin: bytes,
        files: list[bytes],
        init: OwnInit | KeptInit,
        *,
        excerpt_bytes: int | None = None,
    ) -> None:
        """`excerpt_bytes`: keep that much of the output, and end no box for having more."""
        self.spec = spec
        self.limits = Limits(**spec["limits"])
        self.killed_for: Status | None = None
        self.was_dismissed = False
        self.detail = ""
        self.started = time.monotonic()
        self.seen_cpu = watch.CpuTimes()
        self._stdin, self._files, self._init = stdin, files, init
        self._is_listening = False
        self._excerpt_bytes = excerpt_bytes
        self.excerpt: Stream | None = None
        """The output, where `excerpt_bytes` asks for it."""
        self.streams: list[Stream] = []

    def start(self, link: socket.socket | None) -> None:
        """Raises SandboxError when the box cannot be started."""
        given: list[int] = []
        try:
            given.append(_filled_memory_file([box.pack_spec(self.spec), *self._files]))
            given.append(_filled_memory_file([self._stdin]))
            for limit in (self.limits.output_bytes, self.limits.output_bytes, _REPORT_LIMIT):
                ours, theirs = os.pipe()
                size = self._excerpt_bytes
                if size is not None and self.excerpt is None:
                    self.excerpt = Stream(ours, (size + 1) // 2, size // 2)
                    self.streams.append(self.excerpt)
                else:
                    self.streams.append(Stream(ours, limit))
                given.append(theirs)
                os.set_blocking(ours, False)
                # As another user, a program may write to /dev/stdout and /dev/stderr, and not read there. As
                # the same user it can give itself the right to read what it wrote, and nothing else.
                os.fchmod(theirs, 0o222)
            descriptors = given if link is None else [*given, link.fileno()]
            self.started = time.monotonic()
            self._init.start(self.spec, descriptors)
        finally:
            for descriptor in given:
                os.close(descriptor)

    @property
    def pid(self) -> int:
        """The root of all that the box holds; 0 before it has started."""
        return self._init.pid

    @property
    def num_stdin_bytes(self) -> int:
        return len(self._stdin)

    @property
    def deadline(self) -> float:
        return self.started + self.limits.wall_seconds

    @property
    def has_ended(self) -> bool:
        return self._init.has_ended

    def next_descriptors(self) -> list[int]:
        """Descriptors to poll from now on; asked once the box has started and after each `on_readable`."""
        pipes = [] if self._is_listening else [stream.descriptor for stream in self.streams]
        self._is_listening = True
        has_output = any(stream.is_open for stream in self.streams)
        return [*pipes, *self._init.next_descriptors(has_output=has_output)]

    def on_readable(self, descriptor: int) -> bool:
        """Handles one ready descriptor; false when it was the last time for this one."""
        stream = next((stream for stream in self.streams if stream.descriptor == descriptor), None)
        if stream is None:
            return self._init.on_readable(descriptor)
        stream.read()
        if stream.num_omitted and stream is not self.excerpt:
            self.kill(Status.OUTPUT_LIMIT, f"wrote more than {self.limits.output_bytes} bytes")
        return stream.is_open

    def dismiss(self) -> None:
        """Ends a box that nothing waits for any more; that says nothing about its program."""
        # One that has ended without a report was not ended by us: a fault, which the other box may have felt.
        self.was_dismissed = self.was_dismissed or not self.has_ended
        self.kill(None)

    def kill(self, reason: Status | None, detail: str = "") -> None:
        """Ends everything in the box; the first reason counts."""
        if self.has_ended or not self.pid:
            return
        if self.killed_for is None:
            self.killed_for, self.detail = reason, detail
        self._init.kill()

    def close(self) -> None:
        """Gives back what is open, and ends a box that still runs."""
        for stream in self.streams:
            stream.close()
        self.streams = []
        self._init.close()

    def _report(self) -> Report | None:
        data = self.streams[2].content()
        if data.startswith(b"E"):
            raise SandboxError(f"the box could not be set up: {data[1:400].decode(errors='replace')}")
        return self._init.report(data)

    def outcome(self, *, oom_killed: bool, tier: Tier) -> Result:
        """The result. Raises SandboxError for our own failure."""
        report, usage = self._report(), self._init.usage
        # A process whose parent ignores its end is counted only by the samples taken while it ran.
        seconds = max(usage.cpu_seconds, self.seen_cpu.seconds)
        status, detail, code, number = self.killed_for, self.detail, None, None
        if oom_killed and status is None:
            status, detail = Status.MEMORY_LIMIT, "the kernel ended a process of the run for want of memory"
        if report is not None:
            code, number = _decode(report.wait_status)
        elif status is None:
            # Only the machine's own memory shortage, or in the unsafe mode the program, can kill an init.
            wait_status = self._init.wait_status
            if tier is not Tier.UNSAFE and not (self.was_dismissed and self._init.dies_unreported):
                raise SandboxError(f"the box's init ended without a report (wait status {wait_status})")
            code, number = _decode(wait_status or 0)
        if status is None:
            too_much = report is not None and report.left_too_much
            status, detail = self._judge(code, number, seconds, left_too_much=too_much)
        wall_seconds = time.monotonic() - self.started if report is None else report.wall_seconds
        return Result(
            status=status,
            stdout=self.streams[0].content(),
            stderr=self.streams[1].content(),
            exit_code=code,
            signal=number,
            cpu_seconds=round(seconds, 6),
            wall_seconds=round(wall_seconds, 6),
            peak_memory_bytes=usage.peak_bytes,
            tier=tier,
            detail=detail,
            files=tuple(report.files) if report else (),
        )

    def _judge(
        self, code: int | None, number: int | None, seconds: float, *, left_too_much: bool
    ) -> tuple[Status, str]:
        allowed = self.limits.cpu_seconds
        if number == signal.SIGXCPU or seconds > allowed:
            return Status.TIME_LIMIT, f"used {seconds:.2f} s of CPU time; {allowed:g} s are allowed"
        ran_out = any(word in self.streams[1].content()[-4096:] for word in _MEMORY_WORDS)
        if (code or number) and ran_out:
            allowed_bytes = self.limits.memory_bytes
            return Status.MEMORY_LIMIT, f"more than {allowed_bytes} bytes of memory were asked for"
        if left_too_much:
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
