"""The pool around the boxes: refusal, faults of its own, cancelling, order, and what it leaves behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from fakes.processes import children_in_order, descendants, kill, wait_for_end

from sandbox import cgroup, leftovers, watch
from sandbox.command import Limits
from sandbox.interpreter import find_interpreter
from sandbox.pool import SandboxPool, SandboxService
from sandbox.result import Result, SandboxError, Status, Tier
from sandbox.settings import SandboxSettings

LIMITS = Limits(cpu_seconds=20, wall_seconds=60, memory_bytes=256 << 20, stack_bytes=64 << 20)
ONE = SandboxSettings(workers=1)
BROKEN = replace(ONE, command=(sys.executable, "-c", "raise SystemExit(1)"))


async def run(sandbox, source, *, limits=LIMITS, **changes):
    command = await sandbox.build(source, lang="python", limits=limits)
    assert not isinstance(command, Result)
    return await sandbox.run(replace(command, **changes))


async def test_without_any_tier_programs_are_refused_with_the_reasons():
    async with SandboxPool(BROKEN) as sandbox:
        result = await sandbox.run(await sandbox.build("print(1)", lang="python", limits=LIMITS))
        tier = sandbox.tier
    assert (result.status, result.tier, tier, result.stdout) == (Status.REFUSED, None, None, b"")
    assert "namespaces:" in result.detail and "landlock:" in result.detail and "doctor" in result.detail


async def test_the_unsafe_mode_is_recorded_in_the_result():
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("no /usr/bin/python3")
    settings = replace(ONE, tiers=(Tier.UNSAFE,), allow_unsafe=True, python="/usr/bin/python3", packages=())
    async with SandboxPool(settings) as sandbox:
        result = await run(sandbox, "print(1)")
    assert (result.status, result.tier, result.stdout) == (Status.OK, Tier.UNSAFE, b"1\n")


async def test_an_interpreter_that_cannot_run_is_named():
    with pytest.raises(ValueError, match="'/no/python' cannot be run"):
        async with SandboxPool(replace(ONE, python="/no/python")) as sandbox:
            await sandbox.start()


async def test_a_worker_killed_in_the_middle_costs_a_retry_and_no_wrong_answer():
    async with SandboxPool(ONE) as sandbox:
        await sandbox.start()
        (worker,) = sandbox._idle
        os.kill(worker._process.pid, signal.SIGKILL)
        found = await run(sandbox, "print('again')")
    assert found.stdout == b"again\n"


@pytest.mark.parametrize(
    "which",
    [
        pytest.param([0], id="zygote"),
        pytest.param([1], id="keeper"),
        pytest.param([0, 1], id="both", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_helper_killed_in_the_middle_costs_a_restart(which):
    async with SandboxPool(ONE) as sandbox:
        await sandbox.start()
        (worker,) = sandbox._idle
        helpers = children_in_order(psutil.Process(worker._process.pid))
        for index in which:
            # One that loses the other ends by itself.
            kill(helpers[index])
        found = await run(sandbox, "print('again')")
    assert found.stdout == b"again\n"


def test_a_run_finds_no_trace_of_the_runs_before_it(service):
    source = """
import os
open("mark", "w").write("x"); open("/tmp/mark", "w").write("x"); open("/dev/shm/mark", "w").write("x")
if os.fork() == 0:
    os.setsid()
    while True:
        pass
"""
    looking = """
import os
print(os.listdir("."), os.listdir("/tmp"), os.listdir("/dev/shm"), os.getpid(), os.getppid(), os.getpgrp())
print(sorted(name for name in os.listdir("/proc") if name.isdigit()))
"""

    async def work(sandbox):
        first = await run(sandbox, looking)
        for _ in range(3):
            assert (await run(sandbox, source)).status is Status.OK
        return first, await run(sandbox, looking)

    first, last = service.call(work)
    assert first.stdout == last.stdout == b"['main.py'] [] [] 2 1 2\n['1', '2']\n"


def test_what_a_killed_run_used_is_its_own_and_not_the_runs_before_it(service):
    async def work(sandbox):
        await run(sandbox, "x = bytearray(64 << 20)\nfor _ in range(10**7): pass")
        return await run(sandbox, "while True: pass", limits=replace(LIMITS, wall_seconds=0.3))

    result = service.call(work)
    assert result.status is Status.TIME_LIMIT
    # A clock tick of the kernel is 10 ms.
    assert 0 < result.cpu_seconds < result.wall_seconds + 0.05
    assert result.peak_memory_bytes < 48 << 20


async def test_a_sandbox_that_breaks_later_raises_and_blames_nobody():
    with pytest.raises(SandboxError, match="worker"):
        async with SandboxPool(ONE) as sandbox:
            await sandbox.start()
            (worker,) = sandbox._idle
            sandbox.settings = BROKEN
            os.kill(worker._process.pid, signal.SIGKILL)
            await run(sandbox, "print(1)")


async def test_a_cancelled_run_ends_its_program():
    others = descendants()
    async with SandboxPool(ONE) as sandbox:
        await sandbox.start()
        task = asyncio.create_task(
            run(sandbox, "import time; time.sleep(600)", limits=replace(LIMITS, wall_seconds=600))
        )
        # The worker, its two helpers and the program.
        while len(descendants() - others) < 4:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await run(sandbox, "print(1)")).stdout == b"1\n"
    assert not wait_for_end(descendants() - others)


async def test_runs_beyond_the_number_of_workers_wait_their_turn_and_the_loop_never_blocks():
    num_beats = 0

    async def heartbeat():
        nonlocal num_beats
        while True:
            await asyncio.sleep(0.01)
            num_beats += 1

    async with SandboxPool(replace(ONE, workers=2)) as sandbox:
        await sandbox.start()
        heart = asyncio.create_task(heartbeat())
        results = await asyncio.gather(*(run(sandbox, f"print({n})") for n in range(40)))
        before = num_beats
        await run(sandbox, "import time; time.sleep(2)", limits=replace(LIMITS, wall_seconds=60))
        # A loop that waited for the program would have turned once or twice.
        assert num_beats - before > 10
        heart.cancel()
        await asyncio.wait([heart])
        workers = len(sandbox._idle)
    assert [int(result.stdout) for result in results] == list(range(40))
    assert workers == 2


def test_linked_boxes_talk_and_share_nothing_else(service):
    talker = "import os, socket\ns = socket.socket(fileno=3)\n{}\n"

    async def work(sandbox):
        program = await sandbox.build(
            talker.format(
                "open('/tmp/x', 'w').write('x'); s.send(b'ping'); s.recv(4); import time; time.sleep(60)"
            ),
            lang="python",
            limits=replace(LIMITS, wall_seconds=60),
        )
        judge = await sandbox.build(
            talker.format("print(s.recv(4), os.listdir('/tmp'), os.getpid()); s.send(b'pong')"),
            lang="python",
            limits=LIMITS,
        )
        return await sandbox.run_linked(program, judge)

    program, judge = service.call(work)
    assert (judge.status, judge.stdout) == (Status.OK, b"b'ping' [] 2\n")
    # The program sleeps on; it ends with its judge.
    assert program.wall_seconds < 60 and program.exit_code is None


def test_a_compiled_program_is_compiled_once_and_a_refusal_is_the_compilers(service):
    async def work(sandbox):
        good = await sandbox.build('#include <cstdio>\nint main(){puts("hi");}', lang="cpp", limits=LIMITS)
        bad = await sandbox.build("int main() { return x; }", lang="cpp", limits=LIMITS)
        return bad, [await sandbox.run(good) for _ in range(3)]

    bad, runs = service.call(work)
    assert [result.stdout for result in runs] == [b"hi\n"] * 3
    assert max(result.cpu_seconds for result in runs) < 0.2
    assert (bad.status, bad.phase) == (Status.WRONG_EXIT, "compile")
    assert b"not declared" in bad.stderr


def test_the_service_works_from_threads_and_from_two_event_loops():
    from concurrent.futures import ThreadPoolExecutor

    others = descendants()
    service = SandboxService(ONE)
    try:
        with ThreadPoolExecutor(4) as threads:
            calls = [
                threads.submit(service.call, lambda sandbox, n=n: run(sandbox, f"print({n})"))
                for n in range(8)
            ]
            assert [int(call.result().stdout) for call in calls] == list(range(8))
        for _ in range(2):
            assert asyncio.run(service.call_async(lambda sandbox: run(sandbox, "print(1)"))).stdout == b"1\n"
    finally:
        service.close()
    assert not wait_for_end(descendants() - others)


def mounts():
    return Path("/proc/self/mountinfo").read_text()


def groups():
    """Of workers that are gone; those of other sandboxes on this machine are none of ours."""
    found = [path for hierarchy in cgroup.this_machine() for path in hierarchy.home.glob("asyncrl-sandbox-*")]
    return {str(path) for path in found if not cgroup.is_alive(path.name.rpartition("-")[2])}


def assert_groups_are_gone(before, *, sweeps=False):
    """But for those that others left. A worker cleans up when it ends; a killed one is swept up after."""
    deadline = time.monotonic() + 300
    while groups() - before and time.monotonic() < deadline:
        if sweeps:
            leftovers.sweep_groups(cgroup.this_machine())
        time.sleep(0.02)
    assert not groups() - before


HOSTILE = (
    "import os\nfor _ in range(5):\n  if os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(60)\n",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "x = bytearray(1 << 40)",
    "import os; [os.open('/dev/null', 0) for _ in range(400)]",
    "for i in range(50): open(f'f{i}', 'wb').write(bytes(100000))",
    "print('x' * 100000)",
    "import os; os._exit(0)",
    "1 / 0",
    "print(1)",
)


async def soak(sandbox, num_runs):
    """(descriptors, resident bytes of the workers) after a warm-up and at the end."""

    def measure():
        held = len(os.listdir("/proc/self/fd"))
        return held, sum(psutil.Process(worker._process.pid).memory_info().rss for worker in sandbox._idle)

    await asyncio.gather(*(run(sandbox, HOSTILE[n % len(HOSTILE)]) for n in range(40)))
    before = measure()
    for start in range(0, num_runs, 100):
        await asyncio.gather(*(run(sandbox, HOSTILE[n % len(HOSTILE)]) for n in range(start, start + 100)))
    return before, measure()


@pytest.mark.parametrize("num_runs", [100, pytest.param(5000, marks=pytest.mark.slow)])
async def test_hostile_and_honest_runs_in_a_row_leave_nothing(num_runs):
    others = descendants()
    outside = (mounts(), groups(), len(os.listdir("/proc/self/fd")))
    async with SandboxPool(replace(ONE, workers=2)) as sandbox:
        await sandbox.start()
        num_inside = len(descendants() - others)
        before, after = await soak(sandbox, num_runs)
        async with asyncio.timeout(300):
            while len(descendants() - others) != num_inside:
                await asyncio.sleep(0.02)
    assert after[0] <= before[0], "descriptors of the host process"
    assert after[1] < before[1] * 1.1 + (2 << 20), "memory of the workers"
    assert not wait_for_end(descendants() - others)
    assert (mounts(), len(os.listdir("/proc/self/fd"))) == (outside[0], outside[2])
    assert_groups_are_gone(outside[1])


ORPHAN_MAKER = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
from sandbox.command import Limits
from sandbox.pool import SandboxPool
from sandbox.result import Tier
from sandbox.settings import SandboxSettings
async def main():
    sandbox = SandboxPool(SandboxSettings(workers=1, tiers=(Tier({tier!r}),), {more}))
    await sandbox.start()
    source = "import os, time\\nfor _ in range(3): os.fork()\\nprint('up', flush=True); time.sleep(600)"
    command = await sandbox.build(source, lang="python", limits=Limits(wall_seconds=600))
    await sandbox.run(command)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("victim", "tier"),
    [
        ("host", "namespaces"),
        ("worker", "landlock"),
        pytest.param("host", "landlock", marks=pytest.mark.exhaustive),
        pytest.param("worker", "namespaces", marks=pytest.mark.exhaustive),
    ],
)
def test_everything_dies_with_its_parent(victim, tier):
    root = str(Path(__file__).parents[2])
    more = ""
    if tier == "landlock":
        if not os.path.exists("/usr/bin/python3"):
            pytest.skip("no /usr/bin/python3, which the user of the programs could execute")
        more = "python='/usr/bin/python3', packages=()"
    before = groups()
    host = subprocess.Popen([sys.executable, "-c", ORPHAN_MAKER.format(root=root, tier=tier, more=more)])
    try:
        family: set[psutil.Process] = set()
        deadline = time.monotonic() + 300
        # The worker, its zygote, the init, and eight processes of the program.
        while len(family) < 11 and time.monotonic() < deadline:
            family = descendants(host.pid)
            time.sleep(0.02)
        assert len(family) >= 11
        (worker,) = psutil.Process(host.pid).children()
        if victim == "host":
            host.kill()
            host.wait()
        else:
            worker.kill()
            family.remove(worker)
        assert not wait_for_end(family)
    finally:
        host.kill()
        host.wait()
    # The host's last worker outlives it by the moment it takes to clean up; what a killed worker left, the
    # next sweeps.
    assert_groups_are_gone(before, sweeps=victim == "worker")


INIT, PROGRAM, CHILD = 10, 11, 12
EXITING = 0x04


def play(monkeypatch, *, flags, num_threads):
    """A program with a child process, whose descriptors only root may see."""

    def list_descriptors(path):
        if path == f"/proc/{CHILD}/fd":
            raise PermissionError(path)
        return []

    tree = {INIT: [PROGRAM], PROGRAM: [CHILD], CHILD: []}
    processes = {
        PROGRAM: watch._Process(PROGRAM, "S", 0, 0.0, 1, 1),
        CHILD: watch._Process(CHILD, "R", flags, 0.0, num_threads, 1),
    }
    monkeypatch.setattr(watch, "children", lambda pid: list(tree[pid]))
    monkeypatch.setattr(watch, "_status", processes.get)
    monkeypatch.setattr(watch.os, "listdir", list_descriptors)


@pytest.mark.parametrize(
    ("flags", "num_threads", "hidden"),
    [
        (0, 1, {CHILD}),
        (EXITING, 1, set()),
        # Its first thread alone is exiting.
        (EXITING, 2, {CHILD}),
    ],
)
def test_a_process_that_hides_its_descriptors_is_reported_unless_it_is_exiting(
    flags: int, num_threads: int, hidden: set[int], monkeypatch: pytest.MonkeyPatch
):
    play(monkeypatch, flags=flags, num_threads=num_threads)
    times, limits = watch.CpuTimes(), {"enough_tasks": 9, "seconds": 1, "enough_memory": 1 << 30}
    assert watch.look(INIT, times, **limits, directory=None).hidden == hidden


def test_the_current_folder_is_no_part_of_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the json.py of the current folder')")
    for package in ("numpy", "packaging"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    find_interpreter.cache_clear()
    found = find_interpreter(sys.executable, ("numpy", "packaging"))
    assert [path for path in found.packages if Path(path).is_relative_to(tmp_path)] == []
    assert [Path(path).name for path in found.packages if path.endswith("packaging")] == ["packaging"]
