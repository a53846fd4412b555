"""Several functions in one process: what they share, and what the end of one is to the others."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from fakes.records import make_task

from asyncrl.recipe import Agent
from asyncrl.rollout.agents.hosts import FunctionHosts
from asyncrl.rollout.agents.process import Access, Exit, ProcessPrograms, Program, agent_command

FUNCTION = """
import asyncio, os, time

async def run(task):
    match task.api_key.rpartition("-")[2]:
        case "waits":
            await asyncio.Event().wait()
        case "raises":
            raise RuntimeError("no network")
        case "blocks":
            time.sleep(600)
        case "exits":
            os._exit(7)
        case "leaks":
            bytearray(1 << 40)
        case "stays":
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
        case "nothing":
            return None
    return float(task.api_key.rpartition("-")[2])
"""


@dataclass
class Started:
    """Programs of one set of hosts, by what they do."""

    hosts: FunctionHosts
    programs: list[Program] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, does: str) -> Program:
        access = Access("http://127.0.0.1:1/v1", f"sk-{does}")
        program = await self.hosts.start(make_task(), access, self.changed.set)
        self.programs.append(program)
        return program

    async def exit(self, program: Program) -> Exit:
        while (found := program.exit()) is None:
            self.changed.clear()
            await self.changed.wait()
        return found


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Started]:
    (tmp_path / "agent.py").write_text(FUNCTION)
    name = f"{tmp_path / 'agent.py'}:run"
    command = agent_command(None, name, tmp_path)
    processes = ProcessPrograms(command, Agent(may_give_verdict=True))
    found = Started(FunctionHosts(name, processes, 3, timeout_seconds=240.0))
    yield found
    for program in found.programs:
        await program.end()
    assert not found.hosts._hosts


async def test_several_share_a_process_until_it_is_full(started: Started) -> None:
    waiting = [await started.start("waits") for _ in range(4)]
    pids = [program.pid for program in waiting]  # type: ignore[attr-defined]
    assert pids[0] == pids[1] == pids[2] != pids[3]
    await waiting[0].end()
    judging = [await started.start(does) for does in ("0.25", "7", "nothing")]
    assert judging[0].pid == pids[0]  # type: ignore[attr-defined]
    assert await started.exit(judging[0]) == Exit(0, score=0.25)
    wrong = await started.exit(judging[1])
    assert wrong.code == 1 and "its verdict cannot be read" in wrong.detail
    assert await started.exit(judging[2]) == Exit(0)


async def test_one_that_raises_or_is_ended_harms_no_other(started: Started) -> None:
    waiting, raising, ended = [await started.start(does) for does in ("waits", "raises", "waits")]
    found = await started.exit(raising)
    assert found.code == 1 and "RuntimeError: no network" in found.detail and not found.is_lost
    await ended.end()
    assert waiting.exit() is None and started.hosts.num_lost == 0


@pytest.mark.parametrize("does", ["blocks", "exits", "leaks", "stays"])
async def test_one_that_takes_the_process_with_it_has_all_of_it_started_alone(
    started: Started, does: str
) -> None:
    if does == "blocks":
        started.hosts.timeout_seconds = 12.0
    waiting, harmful = await started.start("waits"), await started.start(does)
    if does == "stays":
        # It must have begun, to refuse.
        beside = await started.start("nothing")
        await started.exit(beside)
        await harmful.end()
    for program in (waiting, harmful):
        assert (await started.exit(program)).is_lost
    assert not psutil.pid_exists(waiting.pid) and started.hosts.num_lost == 2  # type: ignore[attr-defined]
    alone, again = await started.start("waits"), await started.start(does)
    assert alone.pid != again.pid  # type: ignore[attr-defined]
    if does in ("exits", "leaks"):
        found = await started.exit(again)
        assert found.code == {"exits": 7, "leaks": 1}[does] and not found.is_lost
    assert alone.exit() is None
    # Another key is none of theirs.
    other = await started.start("0.5")
    assert await started.exit(other) == Exit(0, score=0.5)


async def test_a_function_that_is_none_says_so_alone(started: Started, tmp_path: Path) -> None:
    name = f"{tmp_path / 'agent.py'}:missing"
    started.hosts.function = name
    started.hosts.processes.command = agent_command(None, name, tmp_path)
    assert (await started.exit(await started.start("waits"))).is_lost
    found = await started.exit(await started.start("waits"))
    assert found.code == 1 and "missing" in found.detail
