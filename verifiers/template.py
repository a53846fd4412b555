"""The pool's side of a template and its workers (`verifiers.fork_server`): start, fork, ask, end. Owns the
sockets; knows neither what workers do nor what their deaths mean."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from sandbox import frames
from sandbox.watch import cpu_seconds, resident_bytes
from verifiers.fork_server import END, FORK, ORDER, PREPARE, REPLY
from verifiers.storable import MAX_TRACE_CHARACTERS, storable

T = TypeVar("T")
W = TypeVar("W", bound="Worker")
# Longer than any start on a machine that is busy with other things.
_REPLY_SECONDS = 60.0
# To import a large library from a slow disk.
_PREPARE_SECONDS = 300.0
# Resident when a signal ended the process: the last allocation did not become resident.
_MEMORY_SHARE = 0.5
# Of a pipe, which a crashed process has written its frames into.
_FRAMES_BYTES = 1 << 16


class WorkerDied(Exception):
    """The worker ended without an answer; the message says how."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended."""

    status: int
    """As os.waitpid gives it."""
    peak_bytes: int
    """The most memory that it ever had resident."""
    frames: str
    """Where it was when it crashed; empty where the process did not crash."""

    @property
    def exit_code(self) -> int | None:
        """None where a signal ended it."""
        return None if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)

    @property
    def signal_name(self) -> str:
        """Name of the signal that ended it."""
        number = os.WTERMSIG(self.status)
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"

    def has_used_memory(self, before_bytes: int, limit_bytes: int) -> bool:
        """Whether most of what `limit_bytes` left became resident since it had `before_bytes`. What was there
        before does not count: a large process may crash too."""
        return self.peak_bytes - before_bytes >= _MEMORY_SHARE * (limit_bytes - before_bytes) > 0


class Worker:
    """One forked process. Serves one request at a time; is never used again after it was late."""

    def __init__(
        self, process: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames_pipe: int
    ) -> None:
        """`frames_pipe` is read without waiting, and closed by `close`."""
        self.process = process
        self._reader = reader
        self._writer = writer
        self._frames_pipe = frames_pipe
        self.num_prepared = 0
        """Preparations that the template had made when it forked this worker."""
        self.resident_bytes: int | None = None
        """Resident memory when `note_memory` was last called; None before."""
        self.is_alive = True

    async def exchange(self, request: bytes) -> frames.Message:
        """The answer to a packed message. Raises ConnectionError or IncompleteReadError when it dies."""
        self._writer.write(request)
        await self._writer.drain()
        return await frames.receive_async(self._reader.readexactly)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process)

    def note_memory(self) -> None:
        """Something follows that may use it up."""
        self.resident_bytes = resident_bytes(self.process)

    def crash_frames(self) -> str:
        """The frames that the process wrote as it crashed."""
        try:
            written = os.read(self._frames_pipe, _FRAMES_BYTES)
        except BlockingIOError:
            return ""
        return storable(written.decode(errors="replace"), limit=MAX_TRACE_CHARACTERS)

    def close(self) -> None:
        self.is_alive = False
        self._writer.close()
        os.close(self._frames_pipe)


STANDARD_ERROR = 2


def _messages(kind: bytes, what: int | bytes) -> list[bytes]:
    order = ORDER.pack(kind, what if isinstance(what, int) else len(what))
    return [order, what] if isinstance(what, bytes) else [order]


class Template(Generic[W]):
    """The warm process from which workers are forked. What they print goes to the file `prints`, else to
    standard error."""

    def __init__(
        self,
        module: str,
        make_worker: Callable[[int, asyncio.StreamReader, asyncio.StreamWriter, int], W],
        *,
        memory_limit_bytes: int,
        prints: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Runs `module`, whose main is `fork_server.run`, with the variables `environment`; None: this
        process's. PYTHONPATH is what finds the modules that are found here, unless `environment` has it."""
        self._module = module
        self._make_worker = make_worker
        self._environment = environment
        self._prints = prints
        self._memory_limit_bytes = memory_limit_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._restarting = asyncio.Lock()
        self._preparing = asyncio.Lock()
        self._prepared: dict[bytes, int] = {}
        self._workers: dict[W, socket.socket] = {}
        """With the control socket of the template that forked it: no other one knows its process."""
        self._is_closed = False
        self._tasks: set[asyncio.Task[Ended | None]] = set()

    async def start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # The same modules as here, whatever the working directory: -P keeps Python from adding it by itself.
        root = str(Path(__file__).resolve().parent.parent)
        same = {"PYTHONPATH": os.pathsep.join([root, *(part or os.getcwd() for part in sys.path)])}
        environment = os.environ | same if self._environment is None else {**same, **self._environment}
        if self._prints is not None:
            self._prints.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            # Standard output is the caller's: tables and JSON.
            to = stack.enter_context(self._prints.open("ab")) if self._prints is not None else STANDARD_ERROR
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=environment, stdout=to,
                stderr=to if self._prints is not None else None,
            )  # fmt: skip
        theirs.close()
        try:
            await self._reply(ours)
            # A template that replaces one that died. No order of another call may come in between.
            for payload in list(self._prepared):
                await self._exchange(ours, _messages(PREPARE, payload), [])
        except BaseException as error:
            ours.close()
            await self._end_process()
            if isinstance(error, WorkerDied):
                raise RuntimeError(f"The template of {self._module} did not start: {error}") from error
            raise
        self._control = ours

    async def close(self) -> None:
        """For good."""
        self._is_closed = True
        await self._give_up()

    async def _give_up(self) -> None:
        """Ends the process and its workers; another one may be started."""
        for worker in list(self._workers):
            worker.close()
        self._workers.clear()
        control, self._control = self._control, None
        if control is not None:
            # First the end of the stream, for its reader; a socket that is closed under a reader never
            # wakes it.
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
            async with self._lock:
                control.close()
        await self._end_process()

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # The workers follow: the kernel kills them when the template dies.
            process.kill()
            await asyncio.get_running_loop().run_in_executor(None, process.wait)

    async def prepare(self, payload: bytes) -> int:
        """Has the template load what the message says, once.

        Returns the `num_prepared` of the workers that have it. Raises WorkerDied."""
        async with self._preparing:
            if payload not in self._prepared:
                await self._revived(lambda: self._order(self._control, PREPARE, payload))
                self._prepared[payload] = len(self._prepared) + 1
        return self._prepared[payload]

    def is_prepared(self, payload: bytes, worker: W) -> bool:
        """Whether the worker was forked after `prepare` of the payload."""
        return payload in self._prepared and self._prepared[payload] <= worker.num_prepared

    async def fork(self) -> W:
        """A fresh worker. A template that died is replaced first."""
        return await self._revived(self._fork)

    async def _revived(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The result of `ask`; a template that died is replaced once."""
        broken = self._control
        try:
            return await ask()
        except WorkerDied:
            async with self._restarting:
                if self._is_closed:
                    raise
                # Another call may have replaced it meanwhile.
                if self._control is broken:
                    await self._give_up()
                    try:
                        await self.start()
                    except RuntimeError as error:
                        # The next call tries once more.
                        raise WorkerDied(str(error)) from error
            return await ask()

    async def _fork(self) -> W:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        frames_pipe, written = os.pipe()
        os.set_blocking(frames_pipe, False)
        num_prepared, control = len(self._prepared), self._control
        try:
            process, _ = await self._order(
                control, FORK, self._memory_limit_bytes, (theirs.fileno(), written)
            )
        except BaseException:
            ours.close()
            os.close(frames_pipe)
            raise
        finally:
            theirs.close()
            os.close(written)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        worker = self._make_worker(process, reader, writer, frames_pipe)
        worker.num_prepared = num_prepared
        assert control is not None, "it has answered"
        self._workers[worker] = control
        return worker

    async def end(self, worker: W) -> Ended | None:
        """Kill the worker and return how it ended, which tells a death of its own from the kill; None when
        its template is gone, and the worker with it."""
        control = self._workers.pop(worker, None)
        if control is None:
            return None
        try:
            status, peak_bytes = await self._order(control, END, worker.process)
            return Ended(status, peak_bytes, worker.crash_frames())
        except WorkerDied:
            return None
        finally:
            worker.close()

    def end_soon(self, worker: W) -> None:
        """`end`, without waiting for it."""
        task = asyncio.get_running_loop().create_task(self.end(worker), name="end worker")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _order(
        self, control: socket.socket | None, kind: bytes, what: int | bytes, passed: Sequence[int] = ()
    ) -> tuple[int, int]:
        """The answer of the template at `control` to an order. `what`: the order's number, or the message
        that follows the order. Raises WorkerDied where that template is gone."""
        # Shielded: a canceled caller must not leave a reply in the socket for the next one to read.
        exchange = self._exchange(
            control, _messages(kind, what), [os.dup(each) for each in passed], is_own=False
        )
        return await asyncio.shield(asyncio.ensure_future(exchange))

    async def _exchange(
        self, control: socket.socket | None, messages: list[bytes], passed: list[int], *, is_own: bool = True
    ) -> tuple[int, int]:
        """`is_own`: no other call knows the socket yet."""
        try:
            async with self._lock:
                if control is None or not (is_own or control is self._control):
                    what = "pool is closed" if self._is_closed else "template process is gone"
                    raise WorkerDied(f"the {what}")
                try:
                    # Short messages on an otherwise empty socket: this never blocks.
                    for message in messages:
                        socket.send_fds(control, [message], passed)
                except OSError as error:
                    raise WorkerDied(f"the template process is gone: {error}") from error
                seconds = _PREPARE_SECONDS if len(messages) > 1 else _REPLY_SECONDS
                return await self._reply(control, seconds)
        finally:
            for descriptor in passed:
                os.close(descriptor)

    async def _reply(self, control: socket.socket, seconds: float = _REPLY_SECONDS) -> tuple[int, int]:
        """The template's next message; a reply that takes longer than `seconds` means that it is gone."""
        try:
            async with asyncio.timeout(seconds):
                reply = await asyncio.get_running_loop().sock_recv(control, REPLY.size)
        except TimeoutError as error:
            raise WorkerDied(f"the template process did not answer in {seconds:g} s") from error
        except OSError as error:
            raise WorkerDied(f"the template process is gone: {error}") from error
        if not reply:
            raise WorkerDied("the template process is gone")
        first, second = REPLY.unpack(reply)
        return int(first), int(second)
