"""Containment: no hostile program reaches anything of the host, in any kind of box that this machine offers;
what one run could leave to the next, and take from its neighbours."""

import os
from dataclasses import replace

import pytest

from sandbox.pool import SandboxPool
from sandbox.result import Status, Tier
from tests.sandbox.conftest import TEST_LIMITS

FINGERPRINT = """
import os, resource, signal, sys, time
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)))
names = [name for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]
print([resource.getrlimit(getattr(resource, name)) for name in names])
print(os.umask(0), os.getcwd() == os.environ["PWD"], sorted(os.environ), sys.argv)
print([str(signal.getsignal(number)) for number in range(1, 32)])
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(signal.getitimer(signal.ITIMER_REAL), os.getsid(0) == os.getpid(), os.times()[:4] < (1, 1, 1, 1))
for name in ("oom_score_adj", "timerslack_ns", "coredump_filter", "personality", "autogroup"):
    try: text = open(f"/proc/self/{name}").read()
    except OSError as error: text = str(error.errno)
    # Each session's group has a number of its own.
    print(name, text.partition(" ")[2] if name == "autogroup" else text)
"""
WEAKENING = """
import ctypes, os, resource, signal
for name, text in ("autogroup", "19"), ("oom_score_adj", "0"), ("timerslack_ns", "9"):
    try: open(f"/proc/self/{name}", "w").write(text)
    except OSError: pass
ctypes.CDLL(None).prctl(29, 1 << 30, 0, 0, 0)
os.nice(19)
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.umask(0o777)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
signal.setitimer(signal.ITIMER_REAL, 3600)
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        try: resource.setrlimit(getattr(resource, name), (3, 3))
        except (OSError, ValueError): pass
if os.fork() == 0:
    os.nice(1)
    while True: pass
"""


def test_nothing_that_a_program_does_to_itself_reaches_the_next(box):
    source = FINGERPRINT
    if box.tier is Tier.LANDLOCK and box.user == "nobody":
        # There this limit follows the number of processes that the user has otherwise.
        source = source.replace(
            'name.startswith("RLIMIT_")', 'name.startswith("RLIMIT_") and "NPROC" not in name'
        )
    before = box.run(source)
    assert before.status is Status.OK, before
    for _ in range(2):
        box.run(WEAKENING)
    assert box.run(source).stdout == before.stdout


def test_every_run_below_a_keeper_has_a_session_of_its_own(box):
    if box.tier is not Tier.NAMESPACES:
        pytest.skip("without a keeper each run has its own init, which has the session")
    source = "import os; print(os.getsid(0) == os.getpid()); print(open('/proc/self/autogroup').read())"
    first, second = (box.run(source).stdout.splitlines() for _ in range(2))
    assert first[0] == second[0] == b"True"
    if os.path.exists("/proc/self/autogroup"):
        assert first[1] != second[1]


def test_what_a_program_wrote_cannot_be_read_back_and_never_blocks_the_worker(box):
    """It takes the bytes between the worker's look and its read; as another user it cannot even open them."""
    source = (
        "import os, sys\n"
        "try: os.fchmod(1, 0o600)\n"
        "except OSError: pass\n"
        "try: reader = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)\n"
        "except OSError: print('refused', flush=True); sys.exit()\n"
        "while True:\n"
        "    os.write(1, b'x')\n"
        "    try: os.read(reader, 1)\n"
        "    except BlockingIOError: pass\n"
    )
    is_refused = box.user == "me" and os.getuid() == 0 or box.tier is Tier.LANDLOCK
    result = box.run(source, limits=replace(TEST_LIMITS, wall_seconds=60 if is_refused else 1.5))
    if is_refused:
        assert result.stdout == b"refused\n", result
    else:
        assert result.status is Status.TIME_LIMIT, result


def test_a_fork_bomb_takes_no_processes_from_another_worker(box):
    if box.tier is Tier.LANDLOCK and box.user == "nobody":
        pytest.skip(
            "not enforced there: the kernel counts by user, and all workers are one (the doctor says so)"
        )
    bomb = (
        "import os, time\n"
        "def grow():\n"
        "    while True:\n"
        "        try: os.fork()\n"
        "        except OSError: time.sleep(0.01)\n"
        "print('up', flush=True); grow()\n"
    )
    honest = (
        "import os\nfor _ in range(40):\n    if os.fork() == 0: os._exit(0)\n    os.wait()\nprint('fine')\n"
    )

    async def start(sandbox: SandboxPool, source: str, seconds: float):
        built = await sandbox.build(source, lang="python", limits=replace(TEST_LIMITS, wall_seconds=seconds))
        return await sandbox.run(built)

    running = box.services[1].submit(lambda sandbox: start(sandbox, bomb, 3))
    results = []
    while not running.done():
        results.append(box.services[0].call(lambda sandbox: start(sandbox, honest, 60)))
    assert running.result().stdout == b"up\n"
    assert results and all(result.stdout == b"fine\n" for result in results), results


def test_a_hostile_program_reaches_nothing(box, canaries, hostile_results, hostile_program):
    program = hostile_program
    if program.tiers and box.tier.value not in program.tiers:
        pytest.skip(f"the tier {box.tier.value} does not promise this; {', '.join(program.tiers)} does")

    result, after = hostile_results[program.name]

    source = canaries.fill_in(program.source).encode()
    assert b"ESCAPED" not in result.stdout, result
    assert canaries.secret.encode() not in result.stdout + result.stderr.replace(source, b""), result
    assert len(result.stdout) <= program.limits.output_bytes
    # Ended by its limit; on a busy machine the watcher too has to wait for a core.
    assert result.wall_seconds < program.limits.wall_seconds + 20
    assert result.tier is box.tier
    if program.statuses:
        assert result.status.value in program.statuses, result
    # And the next run is as if it had never been.
    assert (after.status.value, after.stdout) == ("ok", b"[1, 2] 3\n"), after


def test_the_hosts_canaries_are_untouched_by_all_hostile_programs(box, canaries, hostile_results):
    canaries.assert_untouched()


def test_the_canaries_notice_an_escape(canaries, tmp_path):
    """The check can fail: an unconfined process is seen."""
    import socket

    caller = socket.create_connection(("127.0.0.1", canaries.port))
    with pytest.raises(pytest.fail.Exception):
        canaries.assert_untouched()
    # The failed check has accepted the connection; take what is left of it away.
    caller.close()
    (canaries.folder / "daemon").write_text("alive")
    with pytest.raises(AssertionError):
        canaries.assert_untouched()
    (canaries.folder / "daemon").unlink()
