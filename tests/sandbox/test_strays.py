"""Nothing of a killed helper or worker is left: no process, no directory, no group."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from fakes.processes import children_in_order, descendants, wait_for_end

from sandbox import cgroup, leftovers, pool
from sandbox.command import Command, Limits
from sandbox.frames import readable
from sandbox.jail import claim_user, is_mapped
from sandbox.leftovers import end
from sandbox.pool import SandboxPool
from sandbox.result import SandboxError, Tier
from tests.sandbox.conftest import ALL_KINDS_OF_BOX, settings_for
from tests.sandbox.test_random_kills import HOSTILE, adopting_orphans, left_behind
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome

SLEEPER = "import time\ntime.sleep(600)"
BOMB = HOSTILE[0][0]
# What happens only if a zygote is killed within a few microseconds happens each time to a worker that runs
# this first.
ZYGOTE_DIES_BEFORE_ITS_REPLY = """
import os, time
from sandbox.result import SandboxError
from sandbox.zygote_process import ZygoteProcess
clone = ZygoteProcess.clone
def clone_unheard(self, descriptors, message):
    clone(self, descriptors, message)
    os.kill(self.pid, 9)
    time.sleep(0.1)
    raise SandboxError("the zygote has died")
ZygoteProcess.clone = clone_unheard
"""


def unlucky(settings, misfortune):
    """The settings, whose workers run `misfortune` first."""
    *before, code = settings.command
    path, _, rest = code.partition("; from sandbox.worker")
    return replace(settings, command=(*before, f"{path}\n{misfortune}\nfrom sandbox.worker{rest}"))


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        pytest.param(
            kind,
            program,
            id=f"{kind}-{name}",
            marks=() if (kind, name) == ("me-landlock", "bomb") else pytest.mark.exhaustive,
        )
        for kind in ALL_KINDS_OF_BOX
        for name, program in (("bomb", BOMB), ("sleeper", SLEEPER))
        if (kind, name) != ("nobody-landlock", "bomb")
    ],
)
async def test_a_box_that_the_zygote_could_not_name_any_more_ends_with_its_worker(
    kind, program, public_folder, monkeypatch
):
    user, _, tier = kind.partition("-")
    # A later worker would sweep away what an earlier one left.
    monkeypatch.setattr(pool, "_ATTEMPTS", 1)
    limits = Limits(cpu_seconds=20, wall_seconds=0.5, memory_bytes=256 << 20, stack_bytes=64 << 20)
    files = (("p.py", program.encode()),)
    # A run that leaves files has an init of its own in each tier.
    command = Command(("p.py",), warm=True, files=files, collect=("x",), limits=limits)
    before, left_before = descendants(), left_behind()
    with adopting_orphans():
        settings = replace(settings_for(user, Tier(tier), public_folder), workers=1)
        async with SandboxPool(settings) as sandbox:
            await sandbox.start()
            if sandbox.tier is None:
                pytest.skip(f"no {tier} for {user}: {sandbox.reasons}")
            await sandbox.close()
            sandbox.settings = unlucky(settings, ZYGOTE_DIES_BEFORE_ITS_REPLY)
            with pytest.raises(SandboxError, match="the zygote has died"):
                await sandbox.run(command)
        assert not wait_for_end(descendants() - before)
        assert not left_behind() - left_before


async def test_nothing_that_a_worker_starts_holds_the_hosts_line(public_folder):
    """The host would wait for a dead worker for as long as any of them lives."""
    if os.getuid() != 0:
        pytest.skip("helpers show their descriptors to root alone")

    def descriptors(pid):
        return {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}

    settings = replace(settings_for("me", Tier.NAMESPACES, public_folder), workers=1)
    async with SandboxPool(settings) as sandbox:
        await sandbox.start()
        if sandbox.tier is None:
            pytest.skip(f"not on this machine: {sandbox.reasons}")
        worker = psutil.Process(sandbox._idle[0]._process.pid)
        number = worker.cmdline()[-2]
        line = os.readlink(f"/proc/{worker.pid}/fd/{number}")
        zygote, keeper = children_in_order(worker)
        assert line.startswith("socket:")
        assert line not in descriptors(zygote.pid) | descriptors(keeper.pid)


def test_a_process_ends_together_with_the_group_of_its_session():
    shell = ["sh", "-c", "sleep 600 & echo $!; wait"]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True, start_new_session=True) as leader:
        forked = psutil.Process(int(leader.stdout.readline()))
        end(leader.pid)
        assert leader.wait(timeout=300) == -signal.SIGKILL
    assert not wait_for_end([forked])


def test_of_the_callers_own_session_only_the_process_itself_ends():
    code = (
        "import subprocess\nfrom sandbox import leftovers\nended = subprocess.Popen(['sleep', '600'])\n"
        "leftovers.end(ended.pid)\nprint(ended.wait())\n"
    )
    caller = subprocess.run(
        [sys.executable, "-c", code], start_new_session=True, capture_output=True, text=True, timeout=300
    )
    assert (caller.returncode, caller.stdout) == (0, "-9\n"), caller.stderr


def test_all_children_and_their_orphans_are_ended_and_reaped():
    code = (
        "import os, subprocess\nfrom sandbox import kernel, leftovers, watch\nkernel.adopt_orphans()\n"
        "shell = ['sh', '-c', 'setsid sleep 600 & sleep 600 & echo up; wait']\n"
        "pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.DEVNULL}\n"
        "for session in (True, False):\n"
        "    started = subprocess.Popen(shell, start_new_session=session, **pipes)\n"
        "    assert started.stdout.readline() == b'up\\n'\n"
        "leftovers.end_children()\nprint(watch.children(os.getpid()))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ended.stdout == "[]\n", ended.stderr


NUM_DESCRIPTORS = 1100


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Takes all numbers that select can wait for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < NUM_DESCRIPTORS + 200:
        pytest.skip(f"this machine allows {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, NUM_DESCRIPTORS + 200), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(NUM_DESCRIPTORS):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pipe_is_readable_once_it_holds_something_or_hung_up():
    out, into = os.pipe()
    assert readable(out, timeout_seconds=0) == []
    os.write(into, b"x")
    assert readable(out, timeout_seconds=0) == [out]
    os.read(out, 1)
    os.close(into)
    assert readable(out, timeout_seconds=0) == [out]
    os.close(out)


@pytest.mark.usefixtures("many_descriptors")
async def test_workers_answer_a_caller_with_a_thousand_descriptors():
    async with VerifierPool() as pool:
        reference = pool.parse_reference("math", {}, "x^2+2x+1")
        math = await pool.verify("math", {}, "\\boxed{(x+1)^2}", reference)
        gold = pool.parse_reference("code", {}, {"tests": [{"call": "f(1)", "expect": "2"}]})
        code = await pool.verify("code", {}, "```python\ndef f(x): return x + 1\n```", gold)
    assert math.outcome is Outcome.CORRECT, math
    assert code.outcome is Outcome.CORRECT, code


def test_a_directory_is_kept_while_its_worker_holds_the_lock(tmp_path):
    path, lock = leftovers.make_work_base(str(tmp_path), os.getuid())
    os.makedirs(f"{path}/7/work")
    leftovers.sweep(str(tmp_path), [])
    assert os.path.isdir(f"{path}/7/work")
    os.close(lock)
    (tmp_path / "asyncrl-other").mkdir()
    leftovers.sweep(str(tmp_path), [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["asyncrl-other"]


def test_processes_in_the_group_of_a_dead_worker_are_ended(tmp_path):
    """On a directory that stands in for the kernel's; its file keeps it from being removed."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    group = tmp_path / f"asyncrl-sandbox-{dead.pid}"
    group.mkdir()
    left = subprocess.Popen(["sleep", "600"])
    living = tmp_path / f"asyncrl-sandbox-{os.getpid()}"
    living.mkdir()
    kept = subprocess.Popen(["sleep", "600"])
    (group / "cgroup.procs").write_text(f"0\n{left.pid}\n")
    (living / "cgroup.procs").write_text(f"{kept.pid}\n")
    try:
        home = cgroup.Hierarchy(frozenset({"memory"}), 1, tmp_path)
        assert not leftovers.sweep_groups([home])
        assert left.wait(timeout=300) == -9
        assert kept.poll() is None
    finally:
        for process in (left, kept):
            process.kill()
            process.wait()


def test_a_user_is_known_to_a_namespace_by_its_map():
    assert is_mapped("         0          0 4294967295\n", 61184)
    assert is_mapped("0 1000 1\n1 100000 65536\n", 61184)
    assert not is_mapped("0 1000 1\n", 61184)


def test_each_worker_of_roots_has_a_user_of_its_own():
    held = [claim_user() for _ in range(3)]
    try:
        if os.getuid() != 0:
            assert {user for user, _ in held} == {os.getuid()}
        elif all(claimed is not None for _, claimed in held):
            assert len({user for user, _ in held}) == 3
            assert min(user for user, _ in held) > 60000
        else:
            assert {user for user, _ in held} == {65534}
    finally:
        for _, claimed in held:
            if claimed is not None:
                claimed.close()
