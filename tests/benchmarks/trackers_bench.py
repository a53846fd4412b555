"""What a tracker costs the run that has it: CPU and wall-clock time of the controller's process per row.

Each case writes the same rows in turns with a run that has no tracker (A B A B): one that keeps every row,
one that sleeps in its first call, one that hangs in C code, one that raises, one that takes 0.3 s per row.
"""

import asyncio
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# The root first: tests/ has a folder verifiers, too.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from fakes.trackers import own, write_recipe

from asyncrl.launch.trackers import TrackerProcesses
from asyncrl.observe.metrics.columns import groups
from asyncrl.recipe.file import load_recipe
from asyncrl.run.metrics_file import MetricsWriter

NUM_ROWS = 2000
NUM_TURNS = 5
CASES: dict[str, list[Any]] = {
    "keeps every row": [own("keep")],
    "sleeps": [own("failing", at=0, how="sleeps")],
    "hangs in C": [own("failing", at=0, how="hangs in C")],
    "raises": [own("failing", at=0, how="raises")],
    "is slow": [own("failing", at=0, how="is slow")],
}
ROW = {column: 0.123456789 for columns in groups().values() for column in columns}


async def turn(trackers: list[Any]) -> tuple[float, float, float]:
    """Microseconds of CPU and of wall clock per row, and the longest row in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_recipe(run, *trackers)
        (run / "logs").mkdir()
        processes = TrackerProcesses(load_recipe(run / "recipe.yaml").trackers, run, run / "logs")
        await processes.start()
        # Until the tracker has opened, so that it is busy, or hangs, while rows are written.
        await asyncio.sleep(2.0)
        longest = 0.0
        with MetricsWriter(run / "metrics.jsonl") as writer:
            cpu, wall = time.process_time(), time.perf_counter()
            for step in range(NUM_ROWS):
                begin = time.perf_counter()
                writer.step({**ROW, "step": step})
                await asyncio.sleep(0)
                longest = max(longest, time.perf_counter() - begin)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        processes.allow(0.5)
        await processes.stop()
    return 1e6 * cpu / NUM_ROWS, 1e6 * wall / NUM_ROWS, 1e3 * longest


def main() -> None:
    logging.disable(logging.WARNING)
    print(f"{NUM_ROWS} rows of {len(ROW)} columns, {NUM_TURNS} turns each, medians")
    for name, trackers in CASES.items():
        without, having = [], []
        for _ in range(NUM_TURNS):
            without.append(asyncio.run(turn([])))
            having.append(asyncio.run(turn(trackers)))
        shown = [
            "  ".join(f"{statistics.median(row[i] for row in rows):8.2f}" for i in range(3))
            for rows in (without, having)
        ]
        print(f"{name:<18} us CPU, us wall, ms longest: without {shown[0]}   with {shown[1]}", flush=True)


if __name__ == "__main__":
    main()
