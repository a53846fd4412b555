"""Runs per second of a small program on two cores: bare interpreters against warm runs of the sandbox.

Both are measured in turn, several rounds in one process, so that a busy machine slows them alike: read the
ratio, not the rates. The latency added is a run alone, less a bare interpreter alone."""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sandbox.command import Limits
from sandbox.interpreter import find_interpreter
from sandbox.pool import SandboxPool
from sandbox.settings import SandboxSettings

CORES = 2
SOURCE = "a, b = map(int, input().split())\nprint(a + b)\n"
STDIN, EXPECTED = b"3 4\n", b"7\n"
Run = Callable[[], Awaitable[None]]


async def rate(run: Run, seconds: float) -> float:
    """Runs per second with two coroutines per core, so that neither side waits for this process."""
    end, count = time.perf_counter() + seconds, 0

    async def loop() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await run()
            count += 1

    started = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(CORES * 2)))
    return count / (time.perf_counter() - started)


async def latency(run: Run, runs: int = 60) -> float:
    """Median seconds of a run that is alone."""
    found = []
    for _ in range(runs):
        started = time.perf_counter()
        await run()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


async def measure(rounds: int, seconds: float) -> None:
    settings = SandboxSettings(workers=CORES)
    argv = [find_interpreter(settings.python, ()).executable, "-I", "-S", "-c", SOURCE]
    async with SandboxPool(settings) as sandbox:
        await sandbox.start()
        if sandbox.tier is None:
            raise SystemExit(f"no isolation on this machine: {sandbox.reasons}")
        built = await sandbox.build(SOURCE, lang="python", limits=Limits(), fresh=False)
        command = replace(built, stdin=STDIN)

        async def bare() -> None:
            done = await asyncio.to_thread(subprocess.run, argv, input=STDIN, capture_output=True, check=True)
            assert done.stdout == EXPECTED, done

        async def boxed() -> None:
            result = await sandbox.run(command)
            assert result.stdout == EXPECTED, result

        ratios, added = [], []
        for _ in range(rounds):
            plain = await rate(bare, seconds)
            ratios.append(await rate(boxed, seconds) / plain)
            added.append(await latency(boxed) - await latency(bare))
        print(
            f"tier {sandbox.tier.value}, median of {rounds} rounds: {statistics.median(ratios):.2f}x bare "
            f"python, {1000 * statistics.median(added):+.1f} ms against it when alone"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per side and round")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    asyncio.run(measure(arguments.rounds, arguments.seconds))


if __name__ == "__main__":
    main()
