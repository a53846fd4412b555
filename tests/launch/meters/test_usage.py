"""Usage of a start of a run, and which process belongs to which child, on real processes."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fakes.finished_run import record_start
from fakes.newcomer import write_project

from asyncrl.journal.reader import JournalReader
from asyncrl.journal.starts import Usage, read_starts, read_usage
from asyncrl.journal.writer import Journal
from asyncrl.launch.local import _metering
from asyncrl.launch.meters.memory import MemoryMeter
from asyncrl.launch.meters.usage import UsageMeter, find_families, metering
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.preflight import read_inputs
from asyncrl.launch.site.site import ChildProcess
from asyncrl.model.folder import read_shape
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder

TICK = 0.03
"""The kernel counts in hundredths of a second, of each process and its children."""
BUSY = "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass\nprint('done', flush=True)\n"
IDLE = f"{BUSY}time.sleep(100)\n"
WITH_A_CHILD = (
    "import subprocess, sys, time\n"
    f"subprocess.run([sys.executable, '-c', {BUSY!r}, sys.argv[1]])\n"
    "print('done', flush=True)\ntime.sleep(100)\n"
)


def child(folder: Path, name: str, program: str, seconds: float) -> ChildProcess:
    arguments = ["-c", program, str(seconds)]
    return ChildProcess(name, arguments, environment={}, log_path=folder / f"{name}.log")


async def until_done(*processes: ChildProcess) -> None:
    deadline = time.monotonic() + 300
    while not all("done" in process.last_lines() for process in processes):
        assert time.monotonic() < deadline
        await _pause()


async def _pause() -> None:
    await asyncio.sleep(0.02)


def by_name(usages: list[Usage]) -> dict[str, Usage]:
    return {use.name: use for use in usages}


def ticking() -> Callable[[], float]:
    """Ten seconds later at each call."""
    now = iter(range(0, 10_000, 10))
    return lambda: float(next(now))


async def test_each_process_counts_its_own_time_and_that_of_its_children(tmp_path: Path) -> None:
    server, trainer = child(tmp_path, "server 0", WITH_A_CHILD, 0.3), child(tmp_path, "trainer 0", IDLE, 0.1)
    meter = UsageMeter(lambda: [server, trainer], gpus={"trainer 0": 2}, num_gpus=2, clock=ticking())
    await server.start()
    await trainer.start()
    try:
        await until_done(server, trainer)
        meter.discover()
        found = by_name(meter.sample())
    finally:
        await server.stop(grace_seconds=0.0)
        await trainer.stop(grace_seconds=0.0)
    assert found["server 0"].cpu_seconds > 0.3 - TICK and found["trainer 0"].cpu_seconds > 0.1 - TICK
    assert found["trainer 0"].cpu_seconds < found["server 0"].cpu_seconds
    assert (found["trainer 0"].num_gpus, found["server 0"].num_gpus) == (2, 0)
    assert found["trainer 0"].wall_seconds == found["run"].wall_seconds == 10.0
    assert found["run"].num_gpus == 2


async def test_a_process_that_starts_again_adds_to_what_it_used(tmp_path: Path) -> None:
    server = child(tmp_path, "server 0", IDLE, 0.2)
    meter = UsageMeter(lambda: [server], gpus={}, num_gpus=0)
    used = []
    for _ in range(2):
        await server.start()
        await until_done(server)
        meter.discover()
        used.append(by_name(meter.sample())["server 0"].cpu_seconds)
        await server.stop(grace_seconds=0.0)
        (tmp_path / "server 0.log").unlink()
    assert used[0] > 0.2 - TICK and used[1] > used[0] + 0.2 - TICK
    assert by_name(meter.sample())["server 0"].num_restarts == 1
    # What has ended stays counted, once, under its name.
    assert by_name(meter.sample())["server 0"].cpu_seconds == used[1]


async def test_a_killed_run_leaves_what_it_used_in_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    seconds = iter([0.0, 5.0, 7.0, 7.0, 7.0])
    meter = UsageMeter(list, gpus={}, num_gpus=0, clock=lambda: next(seconds))
    entered = metering(meter, journal, 100.0)
    await entered.__aenter__()
    while not read_usage(JournalReader(journal.path)):
        await _pause()
    # Read as after kill -9: nothing has been closed.
    (start,) = read_usage(JournalReader(journal.path)).values()
    assert by_name(start)["run"].wall_seconds == 5.0
    await entered.__aexit__(None, None, None)
    journal.barrier_blocking()
    (start,) = read_usage(JournalReader(journal.path)).values()
    assert by_name(start)["run"].wall_seconds == 7.0
    journal.close()


async def test_a_journal_that_fails_does_not_fail_the_meter(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    with sqlite3.connect(journal.path) as other:
        other.execute("DROP TABLE usage")
    async with metering(UsageMeter(list, gpus={}, num_gpus=0), journal, 1.0):
        with pytest.raises(Exception, match="usage"):
            for _ in range(500):
                await _pause()
                await journal.barrier()


async def test_a_start_records_in_what_it_runs_and_what_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    inputs, _ = await asyncio.to_thread(read_inputs, recipe)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    server = child(tmp_path, "server 0", IDLE, 0.1)
    servers, trainers = SimpleNamespace(processes={"http://a": server}), SimpleNamespace(ranks=[])
    journal = Journal(folder.journal)
    await server.start()
    try:
        async with _metering(journal, inputs, folder, servers, trainers, GpuMap("here"), MemoryMeter()):  # type: ignore[arg-type]
            await until_done(server)
    finally:
        await server.stop(grace_seconds=0.0)
    journal.close()
    (start,) = read_starts(JournalReader(folder.journal))
    assert (start.version, start.record.shape) == (0, read_shape(tmp_path / "model"))
    assert start.record.environment.packages["asyncrl"] and start.record.environment.gpus == []
    (used,) = read_usage(JournalReader(folder.journal)).values()
    assert {use.name for use in used} == {"run", "controller", "verifiers", "server 0"}
    assert read_usage(JournalReader(folder.journal)).keys() == {start.started_seconds}


async def test_a_start_under_another_python_than_the_last_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    inputs, _ = await asyncio.to_thread(read_inputs, load_recipe(tmp_path / "recipe.yaml"))
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    servers, trainers = SimpleNamespace(processes={}), SimpleNamespace(ranks=[])
    Journal(folder.journal).close()
    record_start(folder.path, 1.0, [], python="2.7")
    for num_said in (1, 1):
        journal = Journal(folder.journal)
        async with _metering(journal, inputs, folder, servers, trainers, GpuMap("here"), MemoryMeter()):  # type: ignore[arg-type]
            pass
        journal.close()
        # The second start is like the one before it.
        assert caplog.text.count("(before: 2.7)") == num_said


WAIT = "print('up', flush=True); __import__('sys').stdin.read()"
WITH_A_GRANDCHILD = (
    "import subprocess, sys\n"
    f"inner = [sys.executable, '-c', {WAIT!r}]\n"
    "subprocess.run([sys.executable, '-c', 'import subprocess, sys; subprocess.run(sys.argv[1:])', *inner])\n"
)


def start(program: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    return process


def test_every_process_below_is_in_the_family_of_the_child_it_descends_from() -> None:
    children = [start(WITH_A_GRANDCHILD), start(WAIT)]
    try:
        families = find_families()
        expected = [psutil.Process(child.pid).children(recursive=True) for child in children]
    finally:
        for child in children:
            child.communicate()
    found = {child.pid: family for child, family in families.items()}
    first, second = (found[child.pid] for child in children)
    assert [each.pid for each in first] == [children[0].pid, *(each.pid for each in expected[0])]
    assert (len(first), [each.pid for each in second]) == (3, [children[1].pid])
    # Descendants have no family of their own.
    assert not {each.pid for each in expected[0]} & found.keys()


def test_a_family_is_gone_with_its_child() -> None:
    child = start(WAIT)
    child.communicate()
    assert child.pid not in {each.pid for each in find_families()}
