"""The worker process of one session: runs one call after another in the session's interpreter, answers.

Waits on the host (socket and life), the interpreter's box and deadlines. Trusted, outside of the jail.
Nothing that comes from the interpreter (console.py) is trusted: it is a bounded message of bytes, and one
without the nonce of the request is dropped. Between calls the worker waits on the host alone, and every
process of the box is stopped. When the host hangs up or dies it ends the box, its zygote and its cgroup, and
then itself."""

import math
import secrets
import select
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sandbox import box as inside
from sandbox import console
from sandbox.command import MEBIBYTE
from sandbox.frames import Host, HostGone
from sandbox.init import OwnInit
from sandbox.messages import BoxOrder, BoxSpec, SessionOrder, WorkerSettings
from sandbox.premises import Premises
from sandbox.result import Result, SandboxError, Status
from sandbox.running import Running
from sandbox.zygote_process import ZygoteProcess

_MAX_MESSAGE_BYTES = 1 << 18
_MAX_TEXT_BYTES = 8 * console.MAX_TEXT_CHARACTERS


@dataclass(frozen=True)
class Answer:
    """An interpreter's own words about a call."""

    value: str | None
    traceback: str
    num_threads: int
    """Threads that still run."""


def _read_answer(message: bytes) -> Answer | None:
    """None for one that console.py cannot have written."""
    if len(message) < console.ANSWER.size:
        return None
    size, trace_size, num_threads = console.ANSWER.unpack_from(message)
    texts = message[console.ANSWER.size :]
    if size < -1 or trace_size < 0 or max(size, trace_size) > _MAX_TEXT_BYTES:
        return None
    if max(size, 0) + trace_size != len(texts):
        return None
    value, trace = texts[: max(size, 0)].decode(errors="replace"), texts[max(size, 0) :]
    return Answer(None if size < 0 else value, trace.decode(errors="replace"), max(0, num_threads))


class ConsoleProcess:
    """One interpreter, from its start to its end."""

    def __init__(
        self, host: Host, zygote: ZygoteProcess, spec: BoxSpec, source: bytes, *, excerpt_bytes: int
    ) -> None:
        """Raises SandboxError when its box cannot be started."""
        self._init = OwnInit(zygote, is_pausable=True)
        self.running = Running(spec, b"", [source], self._init, excerpt_bytes=excerpt_bytes)
        self.is_ready = False
        self.answer: Answer | None = None
        """To the last request; None until it comes, and once it was taken."""
        self._nonce = b""
        self._is_paused = False
        self._poller = select.poll()
        self._ends = host.watch(self._poller)
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        try:
            with theirs:
                self.running.start(theirs)
        except BaseException:
            self.close()
            raise
        self._poller.register(self._link, select.POLLIN)
        self._poll_more()

    def ask(self, code: bytes) -> bool:
        """Sends a request; false when the interpreter does not listen any more."""
        self.answer, self._nonce = None, secrets.token_bytes(console.NONCE_BYTES)
        if self._is_paused:
            self._init.resume()
            self._is_paused = False
        try:
            self._link.send(self._nonce + code)
        except OSError:
            # It has closed the link, or lets earlier requests lie.
            return False
        return True

    def pause(self) -> None:
        """Stops all that the code has left running, until the next request."""
        self._init.pause()
        self._is_paused = True

    def attend(self, timeout_seconds: float) -> None:
        """Waits for output, messages or the end, and handles them. Raises HostGone."""
        for descriptor, _ in self._poller.poll(math.ceil(max(0.0, timeout_seconds) * 1000)):
            if descriptor in self._ends:
                raise HostGone
            is_link = descriptor == self._link.fileno()
            is_open = self._on_message() if is_link else self.running.on_readable(descriptor)
            if not is_open:
                self._poller.unregister(descriptor)
        self._poll_more()

    def take_answer(self) -> Answer | None:
        """The answer to the last request; later ones to the same are dropped."""
        answer, self.answer, self._nonce = self.answer, None, b""
        return answer

    def take_output(self) -> str:
        """Output since the last time; it is in the pipe before the answer is in the link."""
        output = self.running.excerpt
        assert output is not None
        if output.is_open:
            output.read()
        return output.take()

    def close(self) -> None:
        """Ends the box, where it has not ended, and gives back what is open."""
        self._link.close()
        self.running.close()

    def _poll_more(self) -> None:
        for descriptor in self.running.next_descriptors():
            self._poller.register(descriptor, select.POLLIN)

    def _on_message(self) -> bool:
        try:
            message = self._link.recv(_MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not message:
            return False
        if not self.is_ready:
            # Nothing of the session's code has run yet.
            self.is_ready = message == console.READY
        elif self.answer is None and self._nonce and message.startswith(self._nonce):
            self.answer = _read_answer(message[console.NONCE_BYTES :])
        return True


_SCRIPT = "console.py"
_ENVIRONMENT = {"MPLBACKEND": "Agg"}
_START_SECONDS = 60.0
_REPORT_SECONDS = 1.0
"""For the report of how an interpreter ended."""
_END_SECONDS = 10.0
_LEAST_CPU_SECONDS = 0.25
"""With less left, an interpreter might not even start."""
_LIMITS = (Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT)

Fields = dict[str, object]


class SessionWorker:
    """Answers calls until the host goes away."""

    def __init__(self, host: Host, settings: WorkerSettings, order: SessionOrder) -> None:
        self._host = host
        self._order = order
        self._premises = Premises(settings)
        self._source = (Path(__file__).parent / _SCRIPT).read_bytes()
        self._console: ConsoleProcess | None = None
        self._cpu_seconds, self._seconds = 0.0, 0.0
        """Used so far: by interpreters that have ended; on the clock, in calls."""
        self._kills_before = 0

    def serve(self) -> None:
        """Handles calls one after the other."""
        try:
            self._guard = self._premises.furnish()
            self._host.serve(self._start, lambda _, blobs: (self._call(*blobs), []))
        finally:
            self._drop_console()
            self._premises.close()

    def _start(self) -> Fields:
        self._console = self._new_console()
        return {}

    def _new_console(self) -> ConsoleProcess:
        """An interpreter that waits for code. Raises SandboxError."""
        limits = self._order["limits"]
        order: BoxOrder = {
            "argv": [_SCRIPT, str(self._order["seed"])],
            "warm": True,
            "environment": _ENVIRONMENT,
            "files": [(_SCRIPT, len(self._source))],
            "collect": [],
            "limits": {**limits, "cpu_seconds": limits["cpu_seconds"] - self._cpu_seconds},
            "oom_score": 1000,
        }
        spec: BoxSpec = {**order, "max_tasks": self._premises.max_tasks(limits["processes"])}
        self._premises.group.bound(limits["memory_bytes"] + inside.disk_space(order), limits["processes"])
        self._kills_before = self._premises.group.num_oom_kills()
        excerpt_bytes = self._order["excerpt_bytes"]
        found = ConsoleProcess(
            self._host, self._premises.zygote(), spec, self._source, excerpt_bytes=excerpt_bytes
        )
        try:
            self._guard.start()
            deadline = time.monotonic() + _START_SECONDS
            while not found.is_ready:
                found.attend(min(self._guard.wait_seconds(), deadline - time.monotonic()))
                if found.running.has_ended:
                    raise SandboxError(f"the session's interpreter did not start: {self._outcome(found)}")
                if time.monotonic() > deadline:
                    raise SandboxError(f"the session's interpreter did not start in {_START_SECONDS:g} s")
        except BaseException:
            self._close(found)
            raise
        return found

    def _call(self, code: bytes) -> Fields:
        """One call's answer. Raises SandboxError for our own failure."""
        spent = self._spent()
        if spent:
            return {"limit": spent}
        found = self._console = self._console or self._new_console()
        found.attend(0.0)
        if found.running.has_ended:
            return self._ended(found, 0.0, " between two calls, so this one was not run")
        began = time.monotonic()
        allowed = min(self._order["call_seconds"], self._order["total_seconds"] - self._seconds)
        if found.ask(code):
            self._wait(found, began + allowed)
        elif not self._ends_now(found):
            found.running.dismiss()
        seconds = time.monotonic() - began
        self._seconds += seconds
        if found.answer is not None:
            found.pause()
            # A call may be shorter than the time between two samples.
            self._guard.look([found.running], at_once=True)
        if found.answer is None or found.running.killed_for is not None:
            return self._ended(found, seconds)
        answer = _answer(found, seconds)
        if self._order["is_fresh"]:
            found.running.dismiss()
            self._await_end(found)
            self._cpu_seconds += self._outcome(found).cpu_seconds
            self._drop_console()
        return answer

    def _spent(self) -> str:
        """Which of the session's limits leaves nothing for another call."""
        limits = self._order["limits"]
        if self._cpu_seconds > limits["cpu_seconds"] - _LEAST_CPU_SECONDS:
            return f"the session's {limits['cpu_seconds']:g} s of CPU time are used up"
        if self._seconds >= self._order["total_seconds"]:
            return f"the {self._order['total_seconds']:g} s that the session's calls may take are used up"
        return ""

    def _wait(self, found: ConsoleProcess, deadline: float) -> None:
        """Until the interpreter has answered or ended."""
        self._guard.start()
        while found.answer is None and not found.running.has_ended:
            now = time.monotonic()
            if now >= deadline:
                found.running.kill(Status.TIME_LIMIT, self._late())
                return
            found.attend(min(deadline - now, self._guard.wait_seconds()))
            if not found.running.has_ended:
                self._guard.look([found.running])

    def _ends_now(self, found: ConsoleProcess) -> bool:
        """Whether an interpreter that reads no more has ended by itself: its pipe breaks before its init has
        reported how."""
        deadline = time.monotonic() + _REPORT_SECONDS
        while not found.running.has_ended and (left := deadline - time.monotonic()) > 0:
            found.attend(left)
        return found.running.has_ended

    def _await_end(self, found: ConsoleProcess) -> None:
        """Until an interpreter that was killed has ended."""
        deadline = time.monotonic() + _END_SECONDS
        while not found.running.has_ended:
            if time.monotonic() > deadline:
                raise SandboxError(f"the session's processes outlived SIGKILL by {_END_SECONDS:g} s")
            found.attend(deadline - time.monotonic())

    def _late(self) -> str:
        call, total = self._order["call_seconds"], self._order["total_seconds"]
        if total - self._seconds < call:
            return f"the session's calls together ran longer than {total:g} s"
        return f"the call ran longer than {call:g} s"

    def _ended(self, found: ConsoleProcess, seconds: float, when: str = "") -> Fields:
        """The answer to a call that its interpreter did not survive."""
        try:
            self._await_end(found)
            outcome = self._outcome(found)
            self._cpu_seconds += outcome.cpu_seconds
            if outcome.status in _LIMITS:
                limit = self._limit_words(outcome)
                return _answer(found, seconds, limit=limit, lost=limit)
            if found.running.was_dismissed or outcome.exit_code == console.BROKEN:
                return _answer(found, seconds, lost="the code made its interpreter unusable")
            how = outcome.detail or "exit code 0"
            return _answer(found, seconds, lost=f"the interpreter ended{when}: {how}")
        finally:
            self._drop_console()

    def _limit_words(self, outcome: Result) -> str:
        limits = self._order["limits"]
        if outcome.status is Status.MEMORY_LIMIT:
            memory, disk = limits["memory_bytes"] / MEBIBYTE, limits["disk_bytes"] / MEBIBYTE
            allowed = f"{memory:g} MiB of memory, {disk:g} MiB of files, {limits['processes']} processes"
            return f"the session may use {allowed}: {outcome.detail}"
        if "CPU" in outcome.detail:
            return f"the session used more than {limits['cpu_seconds']:g} s of CPU time"
        return outcome.detail

    def _outcome(self, found: ConsoleProcess) -> Result:
        """How an interpreter ended. Raises SandboxError for our own failure."""
        # The init has written its report by now; nothing waits for the pipes' end.
        found.running.streams[2].read()
        oom_killed = self._premises.group.num_oom_kills() > self._kills_before
        return found.running.outcome(oom_killed=oom_killed, tier=self._premises.tier)

    def _drop_console(self) -> None:
        if self._console is not None:
            found, self._console = self._console, None
            self._close(found)

    def _close(self, found: ConsoleProcess) -> None:
        pid = found.running.pid
        found.close()
        self._premises.remove_directory(pid)


def _answer(found: ConsoleProcess, seconds: float, *, limit: str = "", lost: str = "") -> Fields:
    """session.SessionResult, as JSON carries it."""
    fields = {"stdout": found.take_output(), "limit": limit, "lost": lost, "seconds": seconds}
    answer = found.take_answer()
    return fields if answer is None else {**fields, **asdict(answer)}
