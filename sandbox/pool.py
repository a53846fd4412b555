"""The sandbox: a pool of workers, each with a warm zygote, behind an asynchronous interface.

Owns the workers and the choice of the tier. At most `workers` runs at a time, others wait in order of
arrival. One event loop; not thread-safe (SandboxService wraps it for threads). Fails closed: without a tier,
results are REFUSED."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any, Self, TypeVar, cast

from sandbox import frames
from sandbox.command import Command, Limits, find_language
from sandbox.interpreter import Interpreter, OutOfReach
from sandbox.messages import BoxOrder, LimitFields, WorkerSettings
from sandbox.result import Result, SandboxError, Status, Tier, refusal, unpacked
from sandbox.settings import SandboxSettings, WorkerProcess, choose_interpreter, worker_settings

# Never blocks the event loop: starting and ending happen in a thread, messages on a non-blocking socket. A
# worker whose request was canceled or failed is not used again.
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


log = logging.getLogger(__name__)

_ATTEMPTS = 3
_GRACE_SECONDS = 60.0
_COMPILE_LIMITS = Limits(cpu_seconds=30.0, wall_seconds=40.0, stack_bytes=64 << 20, output_bytes=1 << 20)
_PROBE = Command(("probe.py",), warm=True, files=(("probe.py", b"print('up')"),))


class SandboxPool:
    """Runs untrusted programs. Every method raises SandboxError when the sandbox itself fails.

    Use as `async with SandboxPool() as sandbox`, or call `close`."""

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.tier: Tier | None = None
        """Known after the first run or `start`; None when everything is refused."""
        self.reasons: dict[Tier, str] = {}
        """Why each tier that was tried and not taken cannot be had."""
        self.out_of_reach: set[Tier] = set()
        """Tiers among these that only lack an interpreter that programs could execute."""
        self.python: Interpreter | None = None
        """Interpreter that programs run on, once the tier is known."""
        self.python_note = ""
        """Why that is another one than the settings name."""
        self._idle: list[WorkerHandle] = []
        self._slots = asyncio.Semaphore(self.settings.workers)
        self._choosing = asyncio.Lock()
        self._chosen = False
        self._worker_settings: WorkerSettings | None = None
        self.cgroup_controllers: tuple[str, ...] = ()
        """The subset of "memory" and "pids" whose cgroups bound the runs of a worker together."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all idle workers; call it when no run is in flight."""
        workers, self._idle = self._idle, []
        await asyncio.gather(*(worker.close() for worker in workers))

    async def start(self, workers: int | None = None) -> None:
        """Chooses the tier and warms up `workers` workers (all by default), so that no run waits for that."""
        await self._choose()
        if self.tier is None:
            return
        missing = (workers or self.settings.workers) - len(self._idle)
        self._idle += await asyncio.gather(*(self._new_worker() for _ in range(missing)))

    async def _new_worker(self) -> WorkerHandle:
        assert self._worker_settings is not None
        return await WorkerHandle.start(self.settings.command, self._worker_settings)

    async def _choose(self) -> None:
        """Takes the first tier on which a worker starts and a program runs."""
        async with self._choosing:
            if self._chosen:
                return
            for tier in self.settings.all_tiers:
                try:
                    python, note = await asyncio.to_thread(choose_interpreter, self.settings, tier)
                    await self._probe(tier, worker_settings(self.settings, tier, python))
                    self.python, self.python_note = python, note
                    if note:
                        log.warning("WARNING: the sandbox: %s.", note)
                    break
                except SandboxError as error:
                    if isinstance(error, OutOfReach):
                        self.out_of_reach.add(tier)
                    self.reasons[tier] = str(error)
            self._chosen = True

    async def _probe(self, tier: Tier, told: WorkerSettings) -> None:
        worker = await WorkerHandle.start(self.settings.command, told)
        try:
            (result,) = await _ask(worker, [_PROBE])
            if result.stdout != b"up\n":
                raise SandboxError(f"a first program did not run: {result}")
        except BaseException:
            await worker.close()
            raise
        self._idle.append(worker)
        self.tier, self._worker_settings = tier, told
        self.cgroup_controllers = worker.cgroup_controllers

    async def build(
        self, source: str | bytes, *, lang: str, limits: Limits, fresh: bool = False
    ) -> Command | Result:
        """The command that runs this program, compiled where its language is; the compiler's Result when that
        refuses the program. `fresh` starts a new interpreter for each run of a Python program.

        Raises ValueError for an unknown language."""
        language = find_language(lang)
        content = source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass")
        await self._choose()
        told = self._worker_settings
        python = self.settings.python if told is None else told["python"]
        names = {"source": language.source, "binary": language.binary, "python": python}

        def fill(template: Sequence[str]) -> tuple[str, ...]:
            return tuple(word.format(**names) for word in template)

        files = ((language.source, content),)
        if not language.compile:
            if language.warm and not fresh:
                return Command((language.source,), warm=True, files=files, limits=limits)
            return Command(fill(language.run), files=files, limits=limits)
        command = Command(
            fill(language.compile), files=files, collect=(language.binary,), limits=_COMPILE_LIMITS
        )
        result = await self.run(command)
        if result.status is not Status.OK or not result.files or not result.files[0]:
            return replace(result, phase="compile", files=())
        return Command(fill(language.run), files=((language.binary, result.files[0]),), limits=limits)

    async def run(self, command: Command) -> Result:
        """One run, from a clean box to the end of everything it started."""
        (result,) = await self._execute([command])
        return result

    async def run_linked(self, program: Command, judge: Command) -> tuple[Result, Result]:
        """Two boxes that share nothing but a stream socket, descriptor 3 in both; the program
        ends with the judge."""
        first, second = await self._execute([program, judge])
        return first, second

    async def _execute(self, commands: list[Command]) -> list[Result]:
        await self._choose()
        if self.tier is None:
            return [Result(Status.REFUSED, detail=refusal(self.reasons)) for _ in commands]
        async with self._slots:
            return await self._attempt(commands)

    async def _attempt(self, commands: list[Command]) -> list[Result]:
        """Runs on an idle worker; our own failures are tried again on a fresh one."""
        for attempt in range(_ATTEMPTS):
            try:
                worker = self._idle.pop() if self._idle and attempt == 0 else await self._new_worker()
            except SandboxError:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            try:
                results = await _ask(worker, commands)
            except SandboxError:
                await worker.close()
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            except BaseException:
                # A worker in the middle of a run must not get the next one; it ends the run when we hang up.
                await worker.close()
                raise
            self._idle.append(worker)
            return results
        raise AssertionError("unreachable")


async def _ask(worker: WorkerHandle, commands: list[Command]) -> list[Result]:
    orders, blobs = [], []
    for index, command in enumerate(commands):
        orders.append(_order(command, oom_score=1000 if index == 0 else 900))
        blobs += [command.stdin, *(content for _, content in command.files)]
    seconds = max(command.limits.wall_seconds for command in commands) + _GRACE_SECONDS
    return await worker.ask(orders, blobs, seconds)


def _order(command: Command, *, oom_score: int) -> BoxOrder:
    return {
        "argv": list(command.argv),
        "warm": command.warm,
        "environment": command.environment,
        "files": [(name, len(content)) for name, content in command.files],
        "collect": list(command.collect),
        "limits": cast(LimitFields, asdict(command.limits)),
        "oom_score": oom_score,
    }


T = TypeVar("T")


class SandboxService:
    """Runs coroutines that use the sandbox, where the sandbox lives."""

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings
        self._locks: dict[int, threading.Lock] = {}
        self._owner_pid = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool: SandboxPool | None = None

    def _started(self) -> tuple[asyncio.AbstractEventLoop, SandboxPool]:
        # One lock per process: after a fork the parent's may never be released. setdefault is atomic.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            if self._loop is None or self._pool is None or self._owner_pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pool = SandboxPool(self._settings)
                self._owner_pid = os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox", daemon=True)
                self._thread.start()
            return self._loop, self._pool

    def submit(self, work: Callable[[SandboxPool], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Starts `work(sandbox)`; cancelling the future cancels it and ends its runs."""
        loop, pool = self._started()
        return asyncio.run_coroutine_threadsafe(work(pool), loop)

    def call(self, work: Callable[[SandboxPool], Coroutine[Any, Any, T]]) -> T:
        """The result of `work(sandbox)`, blocking. Not for event loops."""
        return self.submit(work).result()

    async def call_async(self, work: Callable[[SandboxPool], Coroutine[Any, Any, T]]) -> T:
        """The result of `work(sandbox)`, awaited from any event loop."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Ends the pool and the thread."""
        if self._loop is None or self._pool is None or self._owner_pid != os.getpid():
            return
        loop, self._loop = self._loop, None
        asyncio.run_coroutine_threadsafe(self._pool.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        assert self._thread is not None
        self._thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
