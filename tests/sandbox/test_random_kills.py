"""Many verifications on several workers, honest and hostile, while workers, keepers, zygotes and inits are
killed at random: a verdict that is no fault is the right one, and nothing is left behind."""

import asyncio
import contextlib
import ctypes
import json
import os
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from fakes.processes import descendants

from sandbox import cgroup
from sandbox.pool import SandboxPool
from sandbox.result import Tier
from tests.sandbox.conftest import ALL_KINDS_OF_BOX, settings_for
from verifiers.code.verifier import CodeVerifier
from verifiers.verdict import Outcome

HONEST = (
    ("a, b = map(int, input().split())\nprint(a + b)", {"tests": [{"stdin": "3 4", "stdout": "7"}]}),
    ("def add(a, b): return a + b", {"tests": [{"call": "add(3, 4)", "expect": "7"}]}),
    (
        "def add(a, b): return a + b",
        {"tests": [{"assert": "x = add(3, 4)\nassert x == 7 and add(x, 1) == 8"}]},
    ),
    (
        "class Stack:\n def __init__(self): self.items = []\n def push(self, x): self.items.append(x)\n"
        " def pop(self): return self.items.pop()",
        {"tests": [{"assert": "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and s.pop() == 1"}]},
    ),
    (
        "import os, sys\nif os.fork() == 0: print(sum(range(100)), flush=True); os._exit(0)\nos.wait()",
        {"tests": [{"stdin": "", "stdout": "4950"}]},
    ),
)
ANY = {
    "tests": [{"stdin": "", "stdout": "7"}],
    "limits": {"wall_seconds": 0.3, "disk_mb": 16, "output_mb": 1},
}
HOSTILE = (
    ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", ANY),
    ("import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')", ANY),
    ("import os, signal\nos.kill(-1, signal.SIGKILL)", ANY),
    ("while True: print('x' * 100000)", ANY),
    ("x = b'x' * (1 << 40)", ANY),
    ("import os\nfor i in range(99): open(f'f{i}', 'wb').write(bytes(1 << 20))", ANY),
    ("import os, time\nif os.fork() == 0:\n    time.sleep(60)\nprint(8)", ANY),
    ("import time\ntime.sleep(60)", ANY),
    ("import os\ndef add(a, b): os._exit(0)", HONEST[2][1]),
    ("def add(a, b): return 8", HONEST[2][1]),
)
LIMITS = {"cpu_seconds": 20, "wall_seconds": 60, "memory_mb": 256}


@contextlib.contextmanager
def adopting_orphans():
    """Processes that lose their parent come to this one, where the test can see them."""
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)
    mine = {child.pid for child in psutil.Process().children()}
    yield
    libc.prctl(36, 0, 0, 0, 0)
    for child in psutil.Process().children():
        # The pool has waited for its own workers; who has come since, and has ended, nobody else waits for.
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.pid not in mine and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, 0)


def left_behind():
    """Directories and groups of workers that are gone; other sandboxes of this machine are none of ours."""
    paths = [path for hierarchy in cgroup.this_machine() for path in hierarchy.home.glob("asyncrl-sandbox-*")]
    paths += Path(tempfile.gettempdir()).glob("asyncrl-sandbox-*-*")
    return {
        path
        for path in paths
        if not cgroup.is_alive(path.name.removeprefix("asyncrl-sandbox-").split("-")[0])
    }


def victims(spared):
    """The workers but for `spared`, and what each has started itself: zygote, keeper, inits."""
    found = []
    for worker in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if worker not in spared and "sandbox.worker" in " ".join(worker.cmdline()):
                found += [worker, *worker.children()]
    return found


async def kill_at_random(dice, mean_seconds, counts, spared, *, max_kills):
    # Without a bound a loaded machine, where workers start more slowly than they are killed, gets nowhere.
    while counts["kills"] < max_kills:
        await asyncio.sleep(dice.expovariate(1 / mean_seconds))
        found = await asyncio.to_thread(victims, spared)
        if found:
            with contextlib.suppress(psutil.NoSuchProcess):
                dice.choice(found).kill()
                counts["kills"] += 1


async def verify_all(verifier, tasks, counts):
    """Wrong verdicts as (program, outcome, detail)."""
    wrong = []

    async def one(source, gold, expected):
        reference = verifier.parse_reference(json.dumps(gold))
        while True:
            verdict = await verifier.verify_async(f"```python\n{source}\n```", reference)
            if verdict.outcome is not Outcome.FAULT:
                break
            # As the pool of verifiers does: seen, counted, tried again.
            assert verdict.score is None and "sandbox failed" in verdict.detail
            counts["faults"] += 1
        if verdict.outcome is not expected:
            wrong.append((source, verdict.outcome, verdict.detail))

    await asyncio.gather(*(one(*task) for task in tasks))
    return wrong


@pytest.mark.parametrize(
    ("num_verifications", "seconds_between"), [(20, 0.2), pytest.param(2000, 0.3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "kind",
    [
        "me-namespaces",
        # Of helpers in the other tier, test_faults.py kills some.
        *(
            pytest.param(kind, marks=pytest.mark.exhaustive)
            for kind in ALL_KINDS_OF_BOX
            if kind != "me-namespaces"
        ),
    ],
)
async def test_kills_at_random_make_no_honest_program_wrong_and_leave_nothing(
    kind, num_verifications, seconds_between, public_folder
):
    user, _, tier = kind.partition("-")
    tier = Tier(tier)
    dice = random.Random(11)
    hostile = HOSTILE
    if (user, tier) == ("nobody", Tier.LANDLOCK):
        # Not enforced there: a fork bomb takes the processes of all runs of the same user.
        hostile = HOSTILE[1:]
    counts = {"kills": 0, "faults": 0}
    tasks = [(*dice.choice(HONEST), Outcome.CORRECT) for _ in range(num_verifications * 4 // 5)]
    tasks += [(*dice.choice(hostile), Outcome.WRONG) for _ in range(num_verifications // 5)]
    dice.shuffle(tasks)

    before, left_before = descendants(), left_behind()
    mounts = Path("/proc/self/mountinfo").read_text()

    with adopting_orphans():
        async with SandboxPool(replace(settings_for(user, tier, public_folder), workers=3)) as sandbox:
            await sandbox.start()
            if sandbox.tier is None:
                pytest.skip(f"no {tier.value} for {user}: {sandbox.reasons}")
            verifier = CodeVerifier(sandbox=sandbox, limits=LIMITS)
            max_kills = num_verifications // 4 + 10
            killer = asyncio.create_task(
                kill_at_random(dice, seconds_between, counts, before, max_kills=max_kills)
            )
            wrong = await verify_all(verifier, tasks, counts)
            killer.cancel()
        deadline = time.monotonic() + 60
        # Of others, some may have ended, and some of what they left may be swept away.
        while (descendants() - before or left_behind() - left_before) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert not descendants() - before and not left_behind() - left_before
        assert Path("/proc/self/mountinfo").read_text() == mounts
    assert wrong == []
    assert counts["kills"] >= num_verifications // 40, counts
    print(counts)
