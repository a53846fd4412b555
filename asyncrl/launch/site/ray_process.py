"""A process on a node of a Ray cluster, as the launcher sees it: the same interface as `ChildProcess`.

Its log is copied into the run folder while it runs, so that its last words are there when its node is not.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError, RayError, RayTaskError

from asyncrl.launch.site.process import last_lines

LOST_CODE = -signal.SIGKILL
"""Exit code assumed for a process whose node is gone: nothing is known against its recipe."""
LOSS_SECONDS = 10.0
"""From the loss of a node to its report, where the node's connections break; Ray's heartbeat is slower."""

Fetched = Callable[[Sequence[str]], Awaitable[list[str]]]
"""Given a command line: that with folders which are on the actor's node."""


class RayProcess:
    """Start it again in the same place, unless `why_lost` says that the place is gone."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        actor: Any,
        address: str,
        environment: Mapping[str, str],
        log_path: Path,
        fetched: Fetched,
    ) -> None:
        """`actor` is a handle of a `NodeProcess` on the node at `address`."""
        self.name = name
        self.log_path = log_path
        self.why_lost = ""
        self.loss_seconds = LOSS_SECONDS
        self._arguments = list(arguments)
        self._environment = {"PYTHONSAFEPATH": "1", **environment}
        self._actor = actor
        self._address = address
        self._fetched = fetched
        self._code: int | None = None
        self._ended = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises ServerError when its files cannot be fetched to its node. A node that is lost is an end."""
        self._code = None
        self._ended.clear()
        try:
            arguments = await self._fetched(self._arguments)
            await self._actor.start.remote(arguments, self._environment)
        except RayTaskError:
            raise
        except RayError as error:
            self._lose(error)
        self._following = asyncio.create_task(self._follow(), name=f"log of {self.name}")

    def returncode(self) -> int | None:
        return self._code

    def is_running(self) -> bool:
        return self._following is not None and self._code is None

    def local_pid(self) -> int | None:
        """None: its node knows it, not this machine."""
        return None

    async def wait(self) -> int:
        await self._ended.wait()
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        if self.is_running():
            # Nobody waits for the answer: its end is seen in its log.
            self._actor.kill.remote()

    async def stop(self, *, grace_seconds: float) -> None:
        if self._following is None:
            return
        if self.is_running():
            with contextlib.suppress(RayError):
                await self._actor.stop.remote(grace_seconds)
            await self._ended.wait()
        await self._following

    def last_lines(self, num_lines: int = 15) -> str:
        return last_lines(self.log_path, num_lines)

    async def _follow(self) -> None:
        """Copies its log until its end."""
        offset = 0
        try:
            while self._code is None:
                chunk, code = await self._actor.follow.remote(offset)
                offset += len(chunk)
                if chunk:
                    await asyncio.to_thread(self._append, chunk)
                if code is not None:
                    self._end(code)
        except RayError as error:
            # Whatever Ray calls it, such as its memory monitor's kill: nothing would wait for another end.
            self._actor.kill.remote()
            self._lose(error)
        except OSError as error:
            # The disk of the run folder; its other files say so too.
            self._actor.kill.remote()
            self._end_as_lost(f"its log cannot be written: {error.strerror}")

    def _append(self, chunk: bytes) -> None:
        with self.log_path.open("ab") as log:
            log.write(chunk)

    def _lose(self, error: RayError) -> None:
        is_node = isinstance(error, RayActorError)
        words = f"its node {self._address} was lost"
        self._end_as_lost(words if is_node else f"Ray ended it on {self._address}: {_first_line(error)}")

    def _end_as_lost(self, why: str) -> None:
        self.why_lost = why
        self._end(LOST_CODE)

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()


def _first_line(error: RayError) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
