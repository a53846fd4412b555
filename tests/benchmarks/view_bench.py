"""How long `asyncrl view` takes on a run of 1,000 steps and 1,000,000 trajectories, view by view.

Prints, of each view: the time in Chromium from the address to the first rows or curves, by a server that has
just started and by one that knows the run; that server's CPU for a load; and the CPU of one live update
(server and the page's main thread) after a step was appended. Needs Chromium. `--folder` keeps the run.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fakes.big_run import insert_step, metric_rows, write_big_run
from fakes.chromium import Page, chromium

VIEWS = {
    "overview": ("#/", "#runs tr"),
    "curves": ("#/big/curves", "#charts canvas[aria-label*=held-out]"),
    "groups": ("#/big/groups", "#groups tr"),
    "groups of a step": ("#/big/groups?step=500", "#groups tr"),
    "one group": ("#/big/groups/124000", "#group article"),
    "answers": ("#/big/answers", "main [data-row]"),
    "ledger": ("#/big/ledger", "main [data-row]"),
    "servers": ("#/big/servers", "main p, main table"),
    "faults": ("#/big/faults", "main [data-row]"),
    "log": ("#/big/log", "main [data-row]"),
}
"""Name -> address, and what is there once it shows something."""
TIMER = """
(() => { const wanted = %s; const look = () => {
  if (document.querySelector(wanted)) window.shownAt = performance.now(); else requestAnimationFrame(look); };
  look(); })()"""
NUM_LOADS = 5
NUM_UPDATES = 10
UPDATE = """
(async () => { const begun = performance.now(); await update();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - begun; })()"""


@asynccontextmanager
async def view(run: Path) -> AsyncIterator[tuple[str, psutil.Process]]:
    """`asyncrl view` in a process of its own: its address and the process."""
    command = [sys.executable, "-m", "asyncrl.commands.main", "view", str(run)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().split()[0], psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def main_thread_seconds(page: Page) -> float:
    found = await page.call("Performance.getMetrics")
    return float(next(row["value"] for row in found["metrics"] if row["name"] == "TaskDuration"))


async def load(page: Page, url: str, name: str) -> float:
    """Milliseconds from the address to the first rows, in a new document."""
    address, wanted = VIEWS[name]
    await page.open("about:blank")
    script = await page.call("Page.addScriptToEvaluateOnNewDocument", source=TIMER % json.dumps(wanted))
    await page.open(url + address)
    shown = await page.wait_for("window.shownAt")
    await page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
    return float(shown)


def append_step(run: Path, step: int) -> None:
    """What a run writes when a step ends."""
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in metric_rows(step, step))
    connection = sqlite3.connect(run / "journal.sqlite")
    insert_step(connection, step)
    connection.commit()
    connection.close()


async def measure(run: Path, first_step: int) -> None:
    titles = f"{'first load':>12}{'load':>10}{'server CPU':>12}{'update: server':>16}{'page':>9}{'sum':>9}"
    print(f"{'ms':18}{titles}")
    step = first_step
    with tempfile.TemporaryDirectory() as profile:
        async with view(run) as (url, _), chromium(Path(profile)) as page:
            # Chromium itself starts once.
            await load(page, url, "overview")
        for name in VIEWS:
            async with view(run) as (url, server), chromium(Path(profile)) as page:
                # Ticks of its main thread: CPU time, whatever else runs on the machine.
                await page.call("Performance.enable", timeDomain="threadTicks")
                await page.open(f"{url}nothing")
                first = await load(page, url, name)
                spent = cpu_seconds(server)
                again = [await load(page, url, name) for _ in range(NUM_LOADS)]
                loading = (cpu_seconds(server) - spent) / NUM_LOADS
                before_server, before_page = cpu_seconds(server), await main_thread_seconds(page)
                for _ in range(NUM_UPDATES):
                    step += 1
                    append_step(run, step)
                    await page.evaluate(UPDATE)
                updating = (cpu_seconds(server) - before_server) / NUM_UPDATES
                drawing = (await main_thread_seconds(page) - before_page) / NUM_UPDATES
                assert page.complaints == [], page.complaints
            numbers = (first, statistics.median(again), *(1000 * s for s in (loading, updating, drawing)))
            print(
                f"{name:18}{numbers[0]:12.0f}{numbers[1]:10.0f}{numbers[2]:12.0f}"
                f"{numbers[3]:16.1f}{numbers[4]:9.1f}{numbers[3] + numbers[4]:9.1f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="of 1,000 trajectories each")
    parser.add_argument("--folder", type=Path, help="where the run is made, or is from an earlier time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = arguments.folder or Path(own) / "made"
        if not folder.exists():
            begun = time.process_time()
            write_big_run(folder, num_steps=arguments.steps)
            print(
                f"made {arguments.steps * 1000:,} trajectories in {time.process_time() - begun:.0f} s of CPU"
            )
        journal, metrics = ((folder / "big" / name).stat() for name in ("journal.sqlite", "metrics.jsonl"))
        print(f"journal {journal.st_size / 1e9:.2f} GB, metrics {metrics.st_size / 1e6:.1f} MB")
        ((last,),) = sqlite3.connect(folder / "big" / "journal.sqlite").execute(
            "SELECT max(taken_version) + 1 FROM groups"
        )
        asyncio.run(measure(folder / "big", last))


if __name__ == "__main__":
    main()
