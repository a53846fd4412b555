"""Trackers that hang, raise, die or are slow: dropped with a warning, and the run does not wait for them."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.processes import descendants, wait_for_end
from fakes.trackers import kept, own, write_recipe

from asyncrl.errors import InputError
from asyncrl.launch.trackers import TrackerProcesses
from asyncrl.readers.trackers.tracker import check_trackers
from asyncrl.recipe.file import load_recipe
from asyncrl.run.metrics_file import MetricsWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def processes_of(run: Path, *trackers: Any, stall_seconds: float = 300.0) -> TrackerProcesses:
    write_recipe(run, *trackers)
    (run / "logs").mkdir(exist_ok=True)
    recipe = load_recipe(run / "recipe.yaml")
    return TrackerProcesses(recipe.trackers, run, run / "logs", stall_seconds=stall_seconds)


async def until(condition: Callable[[], Any], *, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def write_steps(run: Path, *steps: int) -> None:
    with MetricsWriter(run / "metrics.jsonl", clock=lambda: 5.0) as writer:
        for step in steps:
            writer.step({"step": step, "loss": 0.5})


async def test_a_tracker_gets_all_rows_before_it_ends(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    trackers = processes_of(run, own("keep"))
    await trackers.start()
    write_steps(run, 1, 2)
    await until(lambda: len(kept(run)) == 3)
    write_steps(run, 3)
    trackers.allow(60.0)
    await trackers.stop()
    opened, *logged, closed = kept(run)
    assert opened == {"opened": "sums", "seed": 0, "run_id": None}
    assert [row["step"] for row in logged] == [1, 2, 3]
    assert logged[0] == {"log": {"train/loss": 0.5}, "step": 1, "time": 5.0}
    assert closed == {"close": True} and not caplog.records


async def test_the_next_start_sends_on_where_the_last_one_ended(run: Path) -> None:
    for step in (1, 2):
        trackers = processes_of(run, own("keep"))
        await trackers.start()
        write_steps(run, step)
        trackers.allow(60.0)
        # An earlier SIGTERM would find a process that does not wait for it yet.
        await until(lambda step=step: sum("opened" in row for row in kept(run)) == step)
        await trackers.stop()
    assert [row["step"] for row in kept(run) if "log" in row] == [1, 2]
    # The second start was told what the first one called the run.
    assert [row["run_id"] for row in kept(run) if "opened" in row] == [None, "1"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "RuntimeError: the tracker's server said no. It lacks 2 row"),
        ("dies", "it was killed by signal 9. It lacks 2 row"),
        ("sleeps", "it did not come back within 5 s. It lacks 2 row"),
        ("hangs in C", "it did not come back within 5 s. It lacks 2 row"),
    ],
)
async def test_a_tracker_that_fails_is_dropped_with_one_warning(
    run: Path, caplog: pytest.LogCaptureFixture, how: str, said: str
) -> None:
    trackers = processes_of(run, own("failing", at=2, how=how), stall_seconds=5.0)
    await trackers.start()
    write_steps(run, 1, 2, 3)
    await until(lambda: caplog.records)
    await trackers.stop()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    message = caplog.records[0].getMessage()
    assert message.startswith(f"tracker trackers.py-failing is dropped: {said}"), message
    assert f"asyncrl track {run}" in message and "tracker-trackers.py-failing.log" in message
    assert [row["step"] for row in kept(run)] == [1]


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (
            "None",
            "gave None, without log, note, supersede, close; expected an object with log, note, supersede",
        ),
        ("unnamed", "with the run_id 7; expected"),
    ],
)
async def test_a_function_that_opens_no_tracker_is_named(
    run: Path, caplog: pytest.LogCaptureFixture, gives: str, said: str
) -> None:
    trackers = processes_of(run, own("opens_wrongly", gives=gives))
    await trackers.start()
    await until(lambda: caplog.records)
    await trackers.stop()
    message = caplog.records[0].getMessage()
    assert "tracker trackers.py-opens_wrongly is dropped: " in message and said in message
    assert "trackers.py:opens_wrongly gave" in message


def test_an_object_that_is_no_function_opens_no_tracker(run: Path) -> None:
    write_recipe(run, own("FILE"))
    with pytest.raises(InputError, match=r"which is PosixPath.*; expected a function that opens a tracker"):
        check_trackers(load_recipe(run / "recipe.yaml").trackers)


async def test_a_tracker_that_hangs_while_it_opens_is_cut_off_at_the_end(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trackers = processes_of(run, own("failing", opening="sleeps", at=1, how="raises"))
    others = descendants()
    await trackers.start()
    mine = [process for process in descendants() if process not in others]
    write_steps(run, 1, 2, 3)
    # Until it hangs: an earlier SIGTERM would end it.
    await until(lambda: any(has_begun(process) for process in mine))
    trackers.allow(0.2)
    await trackers.stop()
    assert not wait_for_end(mine)
    said = "tracker trackers.py-failing is cut off: it did not end within 0.2 s. It lacks 3 row(s)"
    assert [record.getMessage()[: len(said)] for record in caplog.records] == [said]


def has_begun(process: psutil.Process) -> bool:
    """Whether it waits for SIGTERM, which is signal 15, on its own terms."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> 14 & 1)


async def test_a_slow_tracker_is_behind_but_loses_nothing(run: Path) -> None:
    trackers = processes_of(run, own("failing", at=1, how="is slow"), own("keep"))
    await trackers.start()
    write_steps(run, *range(1, 6))
    trackers.allow(60.0)
    await until(lambda: len(kept(run)) >= 7)
    await trackers.stop()
    # Both keep into one file.
    steps = [row["step"] for row in kept(run) if "log" in row]
    assert sorted(steps) == sorted([*range(1, 6), *range(1, 6)])


async def test_a_run_without_trackers_starts_no_process(run: Path) -> None:
    before = descendants()
    trackers = processes_of(run)
    await trackers.start()
    assert descendants() == before
    await trackers.stop()
