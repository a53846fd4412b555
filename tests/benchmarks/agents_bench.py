"""Agents in flight: memory, latency of a call above the engine's own time, starts per second.

    python tests/benchmarks/agents_bench.py [--functions N] [--per-process N] [--processes N] [--calls N]

Agents are in flight all at once: each makes its first call when all have started, and waits between calls, so
that all together make a hundred calls a second. The engine is a process of its own that answers at once and
says how long it took. Everything shares this machine's cores."""

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.agents import agents_on
from fakes.chat_codec import END, make_chat_codec
from fakes.engine import FakeEngine
from fakes.records import make_queue, make_task

from asyncrl.replay.group import Group
from asyncrl.rollout.agents.hosts import FunctionHosts
from asyncrl.rollout.agents.process import ProcessPrograms, Programs, agent_command

CALLS_PER_SECOND = 100.0
SAMPLES = 8
"""Agents of a group."""
FUNCTION = """
import asyncio, json, os, random, time

async def run(task):
    folder, num_calls, gap = {folder!r}, {num_calls}, {gap}
    random.seed(task.api_key)
    open(os.path.join(folder, "started-" + task.api_key), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        await asyncio.sleep(0.5)
    messages, seconds = list(task.messages), []
    for number in range(num_calls):
        await asyncio.sleep(random.uniform(0, 2 * gap))
        began = time.perf_counter()
        messages.append(await task.say(messages))
        seconds.append(time.perf_counter() - began)
        messages.append({{"role": "user", "content": "Next."}})
    with open(os.path.join(folder, "seconds-" + task.api_key), "w") as file:
        json.dump(seconds, file)
"""


class TimedEngine(FakeEngine):
    """Notes the seconds of each request."""

    def __init__(self) -> None:
        super().__init__(num_tokens=10_000, chunk_tokens=64)
        self.seconds: list[float] = []

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        began = time.perf_counter()
        try:
            return await super()._generate(request)
        finally:
            self.seconds.append(time.perf_counter() - began)


def serve_engine(folder: str, connection: Connection) -> None:
    async def serve() -> None:
        codec = make_chat_codec(Path(folder) / "engine")
        answer = list(codec.encode(f"It is 42.{END}", add_special_tokens=False))
        async with TimedEngine() as engine:
            engine.version, engine.answers = "0", lambda prefix: answer
            connection.send(engine.url)
            await asyncio.to_thread(connection.recv)
            connection.send(engine.seconds)

    asyncio.run(serve())


async def unused(client: Any) -> None:
    raise AssertionError("the agents are functions in processes")


def at(seconds: list[float], share: float) -> float:
    """A quantile, in milliseconds."""
    return 1e3 * sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)]


def resident_mib(processes: list[psutil.Process]) -> tuple[float, float]:
    """Resident memory of processes: all, and what no other process shares."""
    found = [process.memory_full_info() for process in processes]
    return sum(each.rss for each in found) / 2**20, sum(each.uss for each in found) / 2**20


async def measure(
    folder: Path, engine: Connection, num_agents: int, per_process: int, num_calls: int
) -> None:
    for name in ("agents", "played"):
        (folder / name).mkdir()
    # A hundred calls a second, however many agents there are.
    gap = num_agents / CALLS_PER_SECOND
    source = FUNCTION.format(folder=str(folder / "agents"), num_calls=num_calls, gap=gap)
    (folder / "agent.py").write_text(source)
    name = f"{folder / 'agent.py'}:run"
    processes = ProcessPrograms(agent_command(None, name, folder))
    programs: Programs = processes
    if per_process > 1:
        programs = FunctionHosts(name, processes, per_process, timeout_seconds=600.0)
    settings = {"max_agents": num_agents, "max_running_requests": num_agents}
    async with agents_on(
        folder / "played",
        unused,
        str,
        queue=make_queue(folder / "played", batch=num_agents // SAMPLES, samples=SAMPLES),
        server=engine.recv(),
        timeout_seconds=600.0,
        **settings,
    ) as run:
        run.player.programs = programs
        controller = psutil.Process()
        before, began = controller.memory_info().rss, time.perf_counter()
        groups = [run.group]
        groups += [run.queue.admit(make_task(i)) for i in range(2, 1 + num_agents // SAMPLES)]

        async def play(group: Group) -> None:
            async for _ in run.player.run(group):
                pass

        playing = asyncio.gather(*map(play, groups))
        await until(folder / "agents", "started-", num_agents, playing)
        starting = time.perf_counter() - began
        children = [
            each for each in controller.children() if "asyncrl.rollout.agents" in " ".join(each.cmdline())
        ]
        resident, own = resident_mib(children)
        (folder / "agents" / "go").touch()
        cpu = time.process_time()
        await playing
        cpu = time.process_time() - cpu
        grown = (controller.memory_info().rss - before) / 2**20
        faults = sum(len(group.scores) for group in groups)
    engine.send("over")
    theirs = engine.recv()
    calls = [
        seconds for file in (folder / "agents").glob("seconds-*") for seconds in json.loads(file.read_text())
    ]
    assert not faults and len(calls) == num_agents * num_calls, (faults, len(calls))
    print(
        f"{num_agents} agents in flight, {per_process} per process ({len(children)} processes): "
        f"{num_agents / starting:.0f} starts/s; programs {resident:.0f} MiB resident, {own:.0f} MiB of "
        f"their own ({own / num_agents:.2f} MiB per agent); controller grew by {grown:.0f} MiB "
        f"({1024 * grown / num_agents:.0f} KiB per agent)"
    )
    print(
        f"  calls: {1e3 * cpu / len(calls):.1f} ms of the controller's CPU time each; "
        f"median {at(calls, 0.5):.1f} ms, 99th percentile {at(calls, 0.99):.1f} ms; the "
        f"engine's own {at(theirs, 0.5):.1f} and {at(theirs, 0.99):.1f} ms; above it "
        f"{at(calls, 0.5) - at(theirs, 0.5):.1f} and {at(calls, 0.99) - at(theirs, 0.99):.1f} ms"
    )


async def until(folder: Path, prefix: str, num_files: int, playing: "asyncio.Future[Any]") -> None:
    while sum(name.startswith(prefix) for name in os.listdir(folder)) < num_files:
        if playing.done():
            playing.result()
            raise AssertionError("agents ended before they began")
        await asyncio.sleep(0.2)


def run_one(num_agents: int, per_process: int, num_calls: int) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory() as folder:
        engine = multiprocessing.get_context("spawn").Process(target=serve_engine, args=(folder, theirs))
        engine.start()
        try:
            asyncio.run(measure(Path(folder), ours, num_agents, per_process, num_calls))
        finally:
            engine.terminate()
            engine.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--functions", type=int, default=4096)
    parser.add_argument("--per-process", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--calls", type=int, default=2)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    run_one(given.processes, 1, given.calls)
    run_one(given.functions, given.per_process, given.calls)
