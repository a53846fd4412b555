"""A fault of ours is never a program's, and a program cannot make one; helpers are killed at random."""

import asyncio
import contextlib
import os
import random
from dataclasses import replace

import psutil
import pytest
from fakes.processes import children_in_order

from sandbox.command import Command, Limits
from sandbox.pool import SandboxPool
from sandbox.result import Result, SandboxError, Status, Tier
from sandbox.settings import SandboxSettings

LIMITS = Limits(cpu_seconds=20, wall_seconds=60, memory_bytes=256 << 20, stack_bytes=64 << 20)
ONE = SandboxSettings(workers=1)
TALKER = "import socket\nlink = socket.socket(fileno=3)\n{}\n"
ANSWERS = TALKER.format("while True:\n    data = link.recv(4)\n    if not data: break\n    link.send(data)")
ASKS = TALKER.format(
    "for number in range(200):\n"
    "    link.send(b'%04d' % number)\n"
    "    if link.recv(4) != b'%04d' % number: print('wrong'); raise SystemExit\n"
    "print('right')"
)


async def warm(sandbox, source):
    command = await sandbox.build(source, lang="python", limits=LIMITS)
    assert not isinstance(command, Result)
    return command


def helpers():
    """The zygote and the keeper of the only worker; while it runs it is not idle, and found by its parent."""
    found = []
    for child in psutil.Process().children():
        # A worker that was closed a moment ago is gone by now, or a zombie.
        with contextlib.suppress(psutil.NoSuchProcess):
            if "sandbox.worker" in " ".join(child.cmdline()):
                found += child.children()
    return found


async def test_a_keeper_that_dies_below_a_linked_program_is_a_fault_of_ours_and_retried():
    async with SandboxPool(ONE) as sandbox:
        await sandbox.start()
        if sandbox.tier is not Tier.NAMESPACES:
            pytest.skip("only namespaces have keepers")
        program, judge = await warm(sandbox, ANSWERS), await warm(sandbox, ASKS.replace("200", "9999"))
        (worker,) = sandbox._idle
        _, keeper = children_in_order(psutil.Process(worker._process.pid))
        running = asyncio.create_task(sandbox.run_linked(program, judge))
        while not keeper.children():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        keeper.kill()
        _, judged = await running
    assert (judged.status, judged.stdout) == (Status.OK, b"right\n"), judged


# In namespaces, test_random_kills.py kills helpers too.
@pytest.mark.parametrize("tier", [pytest.param(Tier.NAMESPACES, marks=pytest.mark.exhaustive), Tier.LANDLOCK])
async def test_helpers_killed_at_random_moments_of_linked_runs_turn_no_right_answer_wrong(tier):
    """Each attempt ends right, or with SandboxError when it was hit three times."""
    dice = random.Random(20)

    settings = replace(ONE, tiers=(tier,))
    if tier is Tier.LANDLOCK:
        settings = replace(settings, python="/usr/bin/python3", packages=())
    async with SandboxPool(settings) as sandbox:
        await sandbox.start()
        if sandbox.tier is None:
            pytest.skip(f"no {tier.value}: {sandbox.reasons}")
        program, judge = await warm(sandbox, ANSWERS), await warm(sandbox, ASKS)
        seen, faults, kills = [], 0, 0
        for _ in range(24):
            running = asyncio.create_task(sandbox.run_linked(program, judge))
            await asyncio.sleep(dice.random() * 0.03)
            alive = helpers()
            # A helper may have ended by itself since it was listed.
            with contextlib.suppress(psutil.NoSuchProcess):
                if alive:
                    dice.choice(alive).kill()
                    kills += 1
            try:
                seen.append((await running)[1].stdout)
            except SandboxError:
                faults += 1
    assert kills > 12
    assert set(seen) == {b"right\n"} and len(seen) + faults == 24


@pytest.mark.parametrize("ending", [
    "os._exit(0)", "os.kill(os.getpid(), 9)", "os.abort()", "raise MemoryError", "x = bytearray(1 << 40)",
    "os.closerange(0, 100); time.sleep(0.2)", "os.fork() and os.kill(0, 9)",
    "link.shutdown(2); time.sleep(0.2)",
])  # fmt: skip
def test_a_linked_program_that_ends_itself_is_a_result_and_no_fault(service, ending):
    async def work(sandbox):
        program = await warm(sandbox, TALKER.format("import os, time\nlink.recv(4)\n" + ending))
        judge = await warm(sandbox, TALKER.format("link.send(b'ping')\nprint(link.recv(4))"))
        return await sandbox.run_linked(program, judge)

    program, judged = service.call(work)
    assert (judged.status, judged.stdout) == (Status.OK, b"b''\n"), (program, judged)


def test_files_that_are_given_need_no_room_on_the_disk(service):
    async def work(sandbox):
        limits = replace(LIMITS, disk_bytes=1 << 20)
        given = (("a", bytes(5 << 20)), ("b", b"x" * 5000))
        source = (
            "import os\nprint(os.path.getsize('a'))\nopen('c', 'wb').write(bytes(1 << 19))\n"
            "try: open('d', 'wb').write(bytes(1 << 20)); print('too much')\n"
            "except OSError: print('full')\n"
        )
        command = replace(await warm(sandbox, source), limits=limits)
        return await sandbox.run(replace(command, files=(*command.files, *given)))

    result = service.call(work)
    assert result.stdout == b"5242880\nfull\n", result


def test_what_is_left_to_be_collected_may_be_too_large_or_no_file(service):
    async def work(sandbox):
        results = []
        for act in (
            "truncate -s 100M left",
            "mkdir left",
            "mkfifo left",
            "ln -s /etc/passwd left",
            "true",
        ):
            command = Command(("/bin/sh", "-c", act), collect=("left",), limits=LIMITS)
            results.append(await sandbox.run(replace(command, limits=replace(LIMITS, disk_bytes=128 << 20))))
        return results

    large, *others = service.call(work)
    assert (large.status, large.files) == (Status.OUTPUT_LIMIT, (b"",)), large
    assert [(other.status, other.files) for other in others] == [(Status.OK, (b"",))] * 4
    assert os.path.exists("/etc/passwd")
