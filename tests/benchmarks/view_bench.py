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

import math
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from fakes.chromium import Page, chromium
from fakes.finished_run import VOCABULARY, write_tokenizer

from asyncrl.journal.connection import GENERATED, TRAINED
from asyncrl.journal.schema import TABLES, create_tables
from asyncrl.journal.statements import answered, committed
from asyncrl.records import Score

GROUPS_PER_STEP = 125
SAMPLES = 8
NUM_TASKS = 20_000
KEEP_STEPS = 200
"""Steps whose tokens the journal still has."""
NUM_OTHER_COLUMNS = 70
"""A step's row has about a hundred columns."""
SECONDS_PER_STEP = 60.0
BEGUN_SECONDS = 1.8e9
PROMPT = array("i", [VOCABULARY[c] for c in "12+34="]).tobytes()
RESPONSE = array("i", [VOCABULARY[c] for c in "{46}"] * 3).tobytes()
LOGPROBS = array("f", [-0.25] * (len(RESPONSE) // 4)).tobytes()
HALF = len(RESPONSE) // 2
COLUMNS = {
    "trajectories": " (trajectory_id, group_id, sample, prompt_tokens, finish, outcome, correctness, reward, "
    "advantage, extracted, detail, verify_seconds, text)"
}
"""Columns of a table that are filled; by default all."""
FAULT = "the verifier raised TypeError: unsupported operand (/runs/verifiers/sums.py:63)"


def write_big_run(folder: Path, *, num_steps: int = 1000) -> Path:
    """The run folder, RUN, next to its model; it holds num_steps x 1,000 trajectories."""
    run = folder / "big"
    run.mkdir(parents=True)
    write_tokenizer(folder / "model")
    recipe = {"name": "big", "model": {"path": str(folder / "model")}, "trainer": {"num_steps": num_steps}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with (run / "metrics.jsonl").open("w") as file:
        for row in metric_rows(1, num_steps):
            file.write(json.dumps(row) + "\n")
    connection = sqlite3.connect(run / "journal.sqlite")
    # Nothing of it has to survive a crash of the generator.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -200000")
    create_tables(connection)
    for step in range(1, num_steps + 1):
        insert_step(connection, step, is_compacted=step <= num_steps - KEEP_STEPS)
    tokens = num_steps * GROUPS_PER_STEP * SAMPLES * len(RESPONSE) // 4
    connection.executemany("INSERT INTO counters VALUES (?, ?)", [(GENERATED, tokens), (TRAINED, tokens)])
    connection.commit()
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    return run


def insert_step(connection: sqlite3.Connection, step: int, *, is_compacted: bool = False) -> None:
    """The groups of one step; the last 2% of them were dropped instead. In the caller's transaction."""
    chance, rows = random.Random(step), {table.name: [] for table in TABLES}
    statements = []
    for number in range(GROUPS_PER_STEP):
        group = (step - 1) * GROUPS_PER_STEP + number
        task, is_dropped = f"train:{1 + group * 7919 % NUM_TASKS}", number >= GROUPS_PER_STEP * 0.98
        fate = ("dropped", None, "stale") if is_dropped else ("trained", step - 1, None)
        seconds = BEGUN_SECONDS + SECONDS_PER_STEP * step
        rows["groups"].append((group, task, "12+34=", fate[0], max(0, step - 2), seconds, *fate[1:]))
        scores = [_score(chance, _accuracy(step)) for _ in range(SAMPLES)]
        for sample, score in enumerate(scores):
            _add_trajectory(rows, group, sample, score, step, is_compacted=is_compacted)
        statements += answered(group, task, scores, step - 1)
    if step % 50 == 0:
        statements += committed(step, f"checkpoints/step-{step}", seconds=seconds)
    for table, values in rows.items():
        if values:
            marks = ", ".join("?" * len(values[0]))
            connection.executemany(f"INSERT INTO {table}{COLUMNS.get(table, '')} VALUES ({marks})", values)
    for sql, parameters in statements:
        connection.execute(sql, parameters)


def _score(chance: random.Random, accuracy: float) -> Score:
    draw = chance.random()
    if draw > 0.999:
        return Score("fault", None, None, None, FAULT, 0.001)
    right = draw < accuracy
    answer = "46" if right else str(chance.randint(40, 45))
    return Score("correct" if right else "wrong", float(right), float(right), answer, "equal", 0.001)


def _add_trajectory(
    rows: dict[str, list[tuple[Any, ...]]],
    group: int,
    sample: int,
    score: Score,
    step: int,
    *,
    is_compacted: bool,
) -> None:
    """To the tables, columns in their order."""
    name, version, count = f"{group:08d}-{sample:02d}", step - 1, len(RESPONSE) // 4
    advantage = None if score.reward is None else score.reward - 0.5
    numbers = (score.outcome, score.correctness, score.reward, advantage)
    verdict = ("stop", *numbers, score.extracted, score.detail, score.seconds)
    prompt, text = (b"", None) if is_compacted else (PROMPT, "{46}{46}{46}")
    rows["trajectories"].append((name, group, sample, prompt, *verdict, text))
    server = f"http://10.0.0.{1 + sample % 4}:30000"
    rows["streams"].append((name, 0, server, BEGUN_SECONDS + SECONDS_PER_STEP * step))
    if is_compacted:
        rows["compacted"].append((name, count, version, version, f"[[{version}, {count}, 0]]"))
        return
    halves = ((0, RESPONSE[:HALF], LOGPROBS[:HALF]), (HALF // 4, RESPONSE[HALF:], LOGPROBS[HALF:]))
    rows["segments"] += [(name, at, version, 0, *blobs) for at, *blobs in halves]


def _accuracy(step: int) -> float:
    return 0.15 + 0.75 / (1 + math.exp(-(step - 400) / 120))


def metric_rows(first: int, last: int) -> Iterator[dict[str, Any]]:
    """Rows of steps, of an evaluation each ten, and an alarm now and then."""
    for step in range(first, last + 1):
        chance = random.Random(-step)
        seconds = BEGUN_SECONDS + SECONDS_PER_STEP * step
        yield {"kind": "step", "time_seconds": seconds, "step": step, **_columns(step, chance)}
        if step % 10 == 0:
            accuracy = min(0.99, _accuracy(step) + chance.gauss(0, 0.01))
            bounds = {"greedy_low": accuracy - 0.03, "greedy_high": min(1.0, accuracy + 0.03)}
            row = {"step": step, "when": "during", "greedy_accuracy": accuracy, **bounds}
            yield {"kind": "eval", "time_seconds": seconds, **row, "response_tokens_mean": 400.0 + step / 2}
        if step % 300 == 0:
            text = f"Entropy fell to 0.0{step % 7} nats."
            row = {
                "event": "alarm",
                "alarm": "entropy",
                "step": step,
                "text": text,
                "value": 0.0,
                "limit": 0.1,
            }
            yield {"kind": "event", "time_seconds": seconds, **row, "is_first": True}


def _columns(step: int, chance: random.Random) -> dict[str, Any]:
    noise = chance.gauss
    main = {
        "reward_mean": _accuracy(step) + noise(0, 0.04),
        "correct_mean": _accuracy(step) + noise(0, 0.04),
        "response_tokens_mean": 380 + step / 2 + noise(0, 20),
        "cut_share": abs(noise(0.01, 0.005)),
        "staleness_mean": 1 + abs(noise(0.4, 0.2)),
        "staleness_max": float(chance.randint(2, 4)),
        "mismatch_kl": abs(noise(2e-3, 4e-4)),
        "staleness_kl": abs(noise(4e-3, 1e-3)),
        "entropy": 0.6 * math.exp(-step / 500) + abs(noise(0, 0.01)),
        "rollout_tokens_per_second": noise(52_000, 3000),
        "tokens_per_second": noise(90_000, 4000),
        "rollout_idle_share": abs(noise(0.03, 0.02)),
        "trainer_idle_share": abs(noise(0.2, 0.05)),
        "grad_norm": abs(noise(0.4, 0.1)),
        "capped_share": abs(noise(1e-3, 3e-4)),
        "step_seconds": SECONDS_PER_STEP,
    }
    return {**main, **{f"other_column_{number:02d}": chance.random() for number in range(NUM_OTHER_COLUMNS)}}


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
