"""The pool's side of the template and its workers: start, fork, ask, end. Owns the sockets;
knows no verdict rules."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from sandbox import frames
from sandbox.watch import cpu_seconds
from verifiers.verdict import Outcome, Verdict
from verifiers.worker import END, FORK, ORDER, REPLY

# Longer than any start on a machine that is busy with other things.
_REPLY_SECONDS = 60.0
# A crash of the process itself. Not SIGKILL: that one comes from outside (the out-of-memory
# killer, an operator).
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGXCPU}


class WorkerDied(Exception):
    """The worker ended without an answer; the message says how."""


class Worker:
    """One forked worker. Serves one request at a time; is never used again after it was late."""

    def __init__(self, process: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self.num_served = 0
        self.is_alive = True

    async def ask(self, request: bytes) -> Verdict:
        """The worker's verdict on a packed message. Raises ConnectionError or
        IncompleteReadError when it dies."""
        self._writer.write(request)
        await self._writer.drain()
        fields, _ = await frames.receive_async(self._reader.readexactly)
        self.num_served += 1
        return Verdict(**{**fields, "outcome": Outcome(fields["outcome"])})

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process)

    def close(self) -> None:
        self.is_alive = False
        self._writer.close()


STANDARD_ERROR = 2


class Template:
    """The warm process from which workers are forked. What verifiers print goes to the file `prints`, else to
    standard error."""

    def __init__(self, memory_limit_bytes: int, prints: Path | None = None) -> None:
        self._prints = prints
        self._memory_limit_bytes = memory_limit_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._restarting = asyncio.Lock()
        self._workers: set[Worker] = set()
        self._tasks: set[asyncio.Task[int | None]] = set()

    async def start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # The same modules as here, whatever the working directory: -P keeps Python from adding it by itself.
        root = str(Path(__file__).resolve().parent.parent)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([root, *(part or os.getcwd() for part in sys.path)]),
        }
        if self._prints is not None:
            self._prints.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            # Standard output is the caller's: tables and JSON.
            to = stack.enter_context(self._prints.open("ab")) if self._prints is not None else STANDARD_ERROR
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "verifiers.worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=environment, stdout=to,
                stderr=to if self._prints is not None else None,
            )  # fmt: skip
        theirs.close()
        self._control = ours
        try:
            await self._reply(ours)
        except WorkerDied as error:
            await self.close()
            raise RuntimeError(f"The template of the verifier workers did not start: {error}") from error

    async def close(self) -> None:
        for worker in list(self._workers):
            worker.close()
        self._workers.clear()
        control, self._control = self._control, None
        if control is not None:
            # First the end of the stream, for whoever reads it; a socket that is closed under a reader never
            # wakes it.
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
            async with self._lock:
                control.close()
        process, self._process = self._process, None
        if process is not None:
            # The workers follow: the kernel kills them when the template dies.
            process.kill()
            await asyncio.get_running_loop().run_in_executor(None, process.wait)

    async def fork(self) -> Worker:
        """A fresh worker. A template that died is replaced first."""
        broken = self._control
        try:
            return await self._fork()
        except WorkerDied:
            async with self._restarting:
                if self._control is None:
                    # Closed on purpose.
                    raise
                # Another call may have replaced it meanwhile.
                if self._control is broken:
                    await self.close()
                    await self.start()
            return await self._fork()

    async def _fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            process = await self._order(FORK, self._memory_limit_bytes, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        worker = Worker(process, reader, writer)
        self._workers.add(worker)
        return worker

    async def end(self, worker: Worker) -> int | None:
        """Kill the worker and return its wait status, which tells a crash from the kill; None
        when all is closed."""
        if worker not in self._workers:
            return None
        self._workers.discard(worker)
        worker.close()
        try:
            return await self._order(END, worker.process)
        except WorkerDied:
            return None

    def end_soon(self, worker: Worker) -> None:
        """`end`, without waiting for it."""
        task = asyncio.get_running_loop().create_task(self.end(worker), name="end verifier worker")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _order(self, kind: bytes, number: int, passed: socket.socket | None = None) -> int:
        # Shielded: a cancelled caller must not leave a reply in the socket for the next one to read.
        exchange = self._exchange(ORDER.pack(kind, number), passed and passed.dup())
        return await asyncio.shield(asyncio.ensure_future(exchange))

    async def _exchange(self, order: bytes, passed: socket.socket | None) -> int:
        async with self._lock:
            control = self._control
            if control is None:
                raise WorkerDied("the pool is closed")
            try:
                # One short message on an otherwise empty socket: this never blocks.
                socket.send_fds(control, [order], [passed.fileno()] if passed else [])
            except OSError as error:
                raise WorkerDied(f"the template process is gone: {error}") from error
            finally:
                if passed is not None:
                    passed.close()
            return await self._reply(control)

    async def _reply(self, control: socket.socket) -> int:
        """The template's next message. It never computes, so a reply that takes long means
        that it is gone."""
        try:
            async with asyncio.timeout(_REPLY_SECONDS):
                reply = await asyncio.get_running_loop().sock_recv(control, REPLY.size)
        except TimeoutError as error:
            raise WorkerDied(f"the template process did not answer in {_REPLY_SECONDS:g} s") from error
        except OSError as error:
            raise WorkerDied(f"the template process is gone: {error}") from error
        if not reply:
            raise WorkerDied("the template process is gone")
        return int(REPLY.unpack(reply)[0])


def describe_end(status: int | None) -> str:
    """How a worker ended, from its wait status; begins with "crash:" when the process itself broke."""
    if status is None:
        return "the worker is gone"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        return (
            f"crash: the worker died of {name}" if number in _CRASHES else f"the worker was ended by {name}"
        )
    return f"crash: the worker ended with status {os.WEXITSTATUS(status)}"
