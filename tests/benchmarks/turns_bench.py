"""Turns per second of environments in processes: what a turn costs beside the environment's own work.

    python tests/benchmarks/turns_bench.py [--trajectories N] [--turns N] [--at-once N] [--gap-ms MS]

The environment answers at once. Counts the CPU time of this process (pool and event loop) and of all others
(template and trajectories), so that turns per second and core do not depend on how busy the machine is.

Without gaps all trajectories want their next turn at once, so that a turn's time is that of a queue:
trajectories at once divided by turns per second. With gaps, as the model makes them, it is the overhead
of a turn."""

import argparse
import asyncio
import os
import random
import statistics
import time
from pathlib import Path

from asyncrl.records import EnvironmentSpec
from asyncrl.turns.pool import EpisodePool

NAME = f"{Path(__file__).parents[1]}/fakes/echo_environment.py:Echo"


async def trajectory(pool: EpisodePool, num_turns: int, gap_seconds: float = 0.0) -> list[float]:
    """Seconds of each turn, with gaps of about `gap_seconds` in front of them."""
    episode = await pool.open(EnvironmentSpec(NAME))
    try:
        await episode.start({"prompt": "p", "answer": 7})
        found = []
        for number in range(num_turns):
            if gap_seconds:
                await asyncio.sleep(random.uniform(0, 2 * gap_seconds))
            began = time.perf_counter()
            await episode.step(f"turn {number}: " + "word " * 200)
            found.append(time.perf_counter() - began)
        return found
    finally:
        await episode.close()


async def measure(num_trajectories: int, num_turns: int, at_once: int, gap_seconds: float) -> None:
    async with EpisodePool(max_processes=at_once, timeout_seconds=60.0) as pool:
        await trajectory(pool, 1)
        (cpu, theirs), began = (time.process_time(), children_seconds(pool)), time.perf_counter()
        turns = await asyncio.gather(
            *(trajectory(pool, num_turns, gap_seconds) for _ in range(num_trajectories))
        )
        wall = time.perf_counter() - began
        controller, others = time.process_time() - cpu, children_seconds(pool) - theirs
    seconds = [turn for one in turns for turn in one]
    num, late = len(seconds), sorted(seconds)[int(0.99 * len(seconds))]
    print(
        f"{num_trajectories} trajectories of {num_turns} turns, {at_once} at once, gaps of "
        f"{1e3 * gap_seconds:.0f} ms: {num / wall:.0f} turns/s; "
        f"{num / (controller + others):.0f} turns/s and core ({1e6 * controller / num:.0f} us of the "
        f"controller, {1e6 * others / num:.0f} us of processes each); median "
        f"{1e3 * statistics.median(seconds):.2f} ms, 99th percentile {1e3 * late:.2f} ms"
    )


def children_seconds(pool: EpisodePool) -> float:
    """CPU time of the template and of the processes that it has reaped."""
    assert pool._template is not None and pool._template._process is not None
    with open(f"/proc/{pool._template._process.pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trajectories", type=int, default=200)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--gap-ms", type=float, default=100.0)
    given = parser.parse_args()
    for at_once, gap_seconds in ((1, 0.0), (given.at_once, 0.0), (given.at_once, 1e-3 * given.gap_ms)):
        asyncio.run(measure(given.trajectories, given.turns, at_once, gap_seconds))
