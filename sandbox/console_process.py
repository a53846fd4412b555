"""The worker's end of a session's interpreter (console.py is the other end): one box, its link, its answers.

Nothing that comes through the link is trusted: it is a bounded message of bytes, and one without the nonce
of the request is dropped."""

import math
import secrets
import select
import socket
from dataclasses import dataclass

from sandbox import console
from sandbox.host import Host, HostGone
from sandbox.init import OwnInit
from sandbox.messages import BoxSpec
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
