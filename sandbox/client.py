"""The host's end of one worker: starts the process, exchanges messages, ends it. One request at a time.

Never blocks the event loop: starting and ending happen in a thread, messages on a non-blocking socket. A
worker whose request was canceled or failed is not used again."""

import asyncio
import contextlib

from sandbox import frames
from sandbox.messages import BoxOrder, WorkerSettings
from sandbox.result import Result, SandboxError, unpacked
from sandbox.worker_process import WorkerProcess

_START_SECONDS = 120.0


class WorkerHandle:
    """A started worker process. `close` ends it and all it started."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._process = worker.process
        self._socket = worker.line
        self._socket.setblocking(False)
        self.cgroup_controllers: tuple[str, ...] = ()
        """The subset of "memory" and "pids" whose cgroups bound the worker's runs together."""

    @classmethod
    async def start(cls, command: tuple[str, ...], settings: WorkerSettings) -> "WorkerHandle":
        """A worker with its zygote up. Raises SandboxError with the worker's reason when that fails."""
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, WorkerProcess, command)
        try:
            worker = cls(await asyncio.shield(opening))
        except asyncio.CancelledError:
            (await opening).kill()
            raise
        try:
            await loop.sock_sendall(worker._socket, frames.pack(settings))
            async with asyncio.timeout(_START_SECONDS):
                hello, _ = await frames.receive_async(worker._read_exactly)
            if "error" in hello:
                raise SandboxError(hello["error"])
            worker.cgroup_controllers = tuple(hello["cgroup"])
        except BaseException as error:
            await worker.close()
            if isinstance(error, OSError | TimeoutError):
                raise SandboxError(f"the sandbox's worker did not start: {error or 'time-out'}") from error
            raise
        return worker

    async def _read_exactly(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = await loop.sock_recv_into(self._socket, view)
            if count == 0:
                raise ConnectionError("the sandbox's worker ended unexpectedly")
            view = view[count:]
        return bytes(data)

    async def ask(self, boxes: list[BoxOrder], blobs: list[bytes], timeout_seconds: float) -> list[Result]:
        """How each box ended. Raises SandboxError when the worker fails, dies or is late."""
        try:
            async with asyncio.timeout(timeout_seconds):
                message = frames.pack({"boxes": boxes}, blobs)
                await asyncio.get_running_loop().sock_sendall(self._socket, message)
                answer, parts = await frames.receive_async(self._read_exactly)
        except TimeoutError as error:
            raise SandboxError(f"the sandbox's worker gave no answer in {timeout_seconds:g} s") from error
        except OSError as error:
            raise SandboxError(f"the sandbox's worker is gone: {error}") from error
        if "error" in answer:
            raise SandboxError(answer["error"])
        results = []
        for header, count in zip(answer["results"], answer["num_blobs"], strict=True):
            results.append(unpacked(header, parts[:count]))
            parts = parts[count:]
        return results

    def kill(self) -> None:
        """Ends the worker and all it started; blocks until then."""
        self._worker.kill()

    async def close(self) -> None:
        """`kill`, without blocking the loop."""
        with contextlib.suppress(ProcessLookupError):
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self.kill))
