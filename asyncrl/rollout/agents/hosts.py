"""Agents that are functions, several of them in one process.

A process whose event loop stands still, that crashes or runs out of memory is killed. None of its
trajectories can be told to be the cause: each is started again in a process of its own, where what it does is
its own doing.
"""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from asyncrl.records import Task
from asyncrl.rollout.agents import function
from asyncrl.rollout.agents.process import Access, Exit, ProcessProgram, ProcessPrograms, Program
from asyncrl.rollout.agents.task import task_file

MOST_STALL_SECONDS = 10.0
"""Longest time in which an event loop may stand still."""
STALL_SHARE = 0.25
"""The same, of agent.timeout_seconds: a loop that stands still is noticed before any trajectory is late."""
BEATS_PER_STALL = 5
END_SECONDS = 5.0
"""For a function to end where it is asked to."""


@dataclass
class FunctionHosts:
    """Starts a function for each task, in processes of several."""

    function: str
    processes: ProcessPrograms
    """Starts the function in a process of its own, and says what all processes of agents may do."""
    per_process: int
    timeout_seconds: float
    """A trajectory's own time, over which the player ends it."""
    num_lost: int = 0
    """Trajectories whose process was lost, since the start."""
    _hosts: list["Host"] = field(default_factory=list)
    _alone: set[str] = field(default_factory=set)
    """Keys of the trajectories whose process was lost."""
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self, task: Task, access: Access, ended: Callable[[], None]) -> Program:
        """Raises OSError."""
        if access.api_key in self._alone:
            return await self.processes.start(task, access, ended)
        async with self._starting:
            host = next((host for host in self._hosts if host.has_place(self.per_process)), None)
            if host is None:
                host = await self._new_host()
            return host.start(task, access, ended)

    async def _new_host(self) -> "Host":
        ours, theirs = socket.socketpair()
        stall = min(MOST_STALL_SECONDS, STALL_SHARE * self.timeout_seconds)
        command = [sys.executable, "-m", function.__name__, self.function]
        with theirs:
            process = await self.processes.launch(
                [*command, str(theirs.fileno()), str(stall / BEATS_PER_STALL)],
                self.processes.own_variables,
                lambda: None,
                pass_fds=[theirs.fileno()],
            )
        host = Host(self, process, ours, stall)
        self._hosts.append(host)
        return host

    def lose(self, host: "Host", programs: list["HostedProgram"]) -> None:
        """`host` is gone, and with it `programs`."""
        self._hosts.remove(host)
        self.num_lost += len(programs)
        self._alone.update(program.api_key for program in programs)


class Host:
    """One process, from its start until it is empty or lost."""

    def __init__(
        self, hosts: FunctionHosts, process: ProcessProgram, connection: socket.socket, stall_seconds: float
    ) -> None:
        self.process = process
        self._hosts = hosts
        self._stall_seconds = stall_seconds
        self._programs: dict[int, HostedProgram] = {}
        self._num_started = 0
        self._is_over = False
        self.begun = asyncio.Event()
        """Set once its loop turns, or is over."""
        self._outgoing: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._work = asyncio.create_task(self._listen(connection))

    def has_place(self, per_process: int) -> bool:
        return len(self._programs) < per_process and not self._is_over

    def start(self, task: Task, access: Access, ended: Callable[[], None]) -> "HostedProgram":
        self._num_started += 1
        number = self._num_started
        program = HostedProgram(self, number, access.api_key, ended)
        self._programs[number] = program
        told = json.loads(task_file(task, self._hosts.processes.section.columns))
        self._say({"start": number, "task": told, "base_url": access.base_url, "api_key": access.api_key})
        return program

    def ask_to_end(self, number: int) -> None:
        self._say({"end": number})

    async def end(self) -> None:
        """Kills the process; what it still runs is lost."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def gone(self) -> None:
        """Returns once the process is, if it is to go."""
        if self._is_over:
            await asyncio.gather(asyncio.shield(self._work), return_exceptions=True)

    def _say(self, said: dict[str, Any]) -> None:
        line = json.dumps(said).encode() + b"\n"
        if self._writer is None:
            self._outgoing.append(line)
        else:
            self._writer.write(line)

    async def _listen(self, connection: socket.socket) -> None:
        """Until the process is empty, hangs up, or its loop stands still."""
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=function.LARGEST_LINE)
            self._writer = writer
            writer.writelines(self._outgoing)
            # To start, it imports: the first beat may take as long as a trajectory.
            patience = max(self._stall_seconds, self._hosts.timeout_seconds)
            with contextlib.suppress(OSError, TimeoutError):
                while line := await asyncio.wait_for(reader.readline(), patience):
                    patience = self._stall_seconds
                    self.begun.set()
                    if self._has_ended(json.loads(line)):
                        break
        finally:
            self._is_over = True
            (connection if self._writer is None else self._writer).close()
            self.begun.set()
            lost = list(self._programs.values())
            self._programs.clear()
            self._hosts.lose(self, lost)
            # Before any is started again.
            await self.process.end()
            for program in lost:
                program.finish(Exit(1, "the process that it shared with others is lost", is_lost=True))

    def _has_ended(self, said: dict[str, Any]) -> bool:
        """Whether the process has nothing left to do."""
        if "number" not in said:
            return False
        self._programs.pop(said["number"]).finish(self._exit(said))
        return not self._programs

    def _exit(self, said: dict[str, Any]) -> Exit:
        if "error" in said:
            return Exit(1, self._hosts.processes.explained(said["error"]))
        if said["found"] is None or not self._hosts.processes.section.may_give_verdict:
            return Exit(0)
        try:
            return Exit(0, score=self._hosts.processes.read_verdict(said["found"]))
        except ValueError as error:
            return Exit(1, f"its verdict cannot be read: {error}")


class HostedProgram:
    """One trajectory's function."""

    def __init__(self, host: Host, number: int, api_key: str, ended: Callable[[], None]) -> None:
        self.api_key = api_key
        self.pid = host.process.pid
        self._host = host
        self._number = number
        self._ended = ended
        self._exit: Exit | None = None
        self._finished = asyncio.Event()

    def exit(self) -> Exit | None:
        return self._exit

    def finish(self, exit: Exit) -> None:
        self._exit = exit
        self._finished.set()
        self._ended()

    async def end(self) -> None:
        if self._exit is None:
            self._host.ask_to_end(self._number)
            # A busy machine takes seconds to start a process, which is no refusal.
            await self._host.begun.wait()
            try:
                await asyncio.wait_for(self._finished.wait(), END_SECONDS)
            except TimeoutError:
                await self._host.end()
        await self._host.gone()
