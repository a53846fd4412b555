"""A session's end: whatever ends it, no process, directory, group or descriptor is left."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from fakes.processes import children_in_order, descendants, is_alive, wait_for_end

from sandbox.result import SandboxError, Tier
from sandbox.session import Session, SessionLimits, SessionRefused
from tests.sandbox.conftest import ALL_KINDS_OF_BOX, kinds_of_box, settings_for
from tests.sandbox.test_random_kills import adopting_orphans, left_behind

ROOT = Path(__file__).parents[2]
LIMITS = SessionLimits(call_seconds=500, total_seconds=1000)
BUSY = """
import os, subprocess, threading, time
threading.Thread(target=lambda: [time.sleep(0.01) for _ in iter(int, 1)], daemon=True).start()
if os.fork() == 0:
    try: os.setsid()
    except OSError: pass
    time.sleep(900)
subprocess.Popen(["sleep", "900"])
open("file", "wb").write(bytes(100000))
"""
"""Leaves a thread, a process of its own session, a command and a file."""
PARENT = f"""
import os, signal, sys, time
# A shell that started the tests in the background has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(ROOT)!r})
from sandbox.session import Session, SessionLimits
from sandbox.settings import SandboxSettings
from sandbox.result import Tier
settings = SandboxSettings(tiers=(Tier(sys.argv[1]),), python=sys.argv[2], packages=())
limits = SessionLimits(call_seconds=500, total_seconds=1000)
with Session.open(limits, settings=settings) as session:
    started, tell_started = os.pipe()
    if os.fork() == 0:
        # A signal that comes before Python has finished the fork is lost, so the parent waits for this byte.
        os.write(tell_started, b"1")
        # It holds the session's line open for as long as it lives.
        time.sleep(900)
    os.read(started, 1)
    session.run({BUSY!r})
    print("up", flush=True)
    session.run("while True: pass") if sys.argv[3] == "calling" else time.sleep(900)
"""


def opened(kind, folder, **options):
    user, _, tier = kind.partition("-")
    try:
        return Session.open(LIMITS, settings=settings_for(user, Tier(tier), folder), **options)
    except SessionRefused as error:
        pytest.skip(f"this machine has no {tier} for {user}: {error}")


def assert_nothing_is_left(before, left_before):
    assert not wait_for_end(descendants() - before, seconds=120)
    deadline = time.monotonic() + 300
    # The kernel keeps a group for a moment after its last process.
    while left_behind() - left_before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left_behind() - left_before


@pytest.mark.parametrize("kind", kinds_of_box())
@pytest.mark.parametrize("is_fresh", [False, True], ids=["kept", "fresh"])
def test_nothing_is_left_of_a_closed_session(kind, is_fresh, public_folder):
    before, left_before = descendants(), left_behind()
    outside = Path("/proc/self/mountinfo").read_text(), len(os.listdir("/proc/self/fd"))
    session = opened(kind, public_folder, is_fresh=is_fresh)
    folders = {path for path in left_behind() - left_before}
    assert session.run(BUSY).lost == ""
    session.close()
    session.close()
    assert not folders
    assert_nothing_is_left(before, left_before)
    assert (Path("/proc/self/mountinfo").read_text(), len(os.listdir("/proc/self/fd"))) == outside


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS_OF_BOX if kind != "nobody-landlock"][:2])
@pytest.mark.parametrize(
    ("state", "ending"),
    [
        pytest.param("calling", signal.SIGKILL, id="killed-calling"),
        pytest.param("waiting", signal.SIGINT, id="interrupted-waiting"),
        pytest.param("waiting", signal.SIGKILL, id="killed-waiting", marks=pytest.mark.exhaustive),
        pytest.param("calling", signal.SIGINT, id="interrupted-calling", marks=pytest.mark.exhaustive),
    ],
)
def test_a_session_ends_with_the_process_that_opened_it(kind, state, ending, public_folder):
    _, _, tier = kind.partition("-")
    settings = settings_for("me", Tier(tier), public_folder)
    opened(kind, public_folder).close()
    before, left_before = descendants(), left_behind()
    with adopting_orphans():
        command = [sys.executable, "-c", PARENT, tier, settings.python, state]
        parent = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        try:
            assert parent.stdout.readline() == "up\n"
            inside = descendants(parent.pid)
            # A forked child, the worker, its zygote, an init, the interpreter, and what BUSY started.
            assert len(inside) >= 6
            (holder,) = (each for each in psutil.Process(parent.pid).children() if not each.children())
            if ending is signal.SIGKILL:
                parent.kill()
                assert not wait_for_end(inside - {holder}, seconds=120)
                assert is_alive(holder)
            else:
                # As the terminal does, to the whole foreground group.
                os.killpg(parent.pid, signal.SIGINT)
                assert not wait_for_end(inside, seconds=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
            parent.communicate()
        assert_nothing_is_left(before, left_before)


def test_a_session_can_be_ended_in_the_middle_of_a_call(public_folder):
    before, left_before = descendants(), left_behind()
    session = opened("me-namespaces", public_folder)
    found = []

    def call():
        with pytest.raises(SandboxError) as caught:
            session.run("print('begun', flush=True)\nwhile True: pass")
        found.append(str(caught.value))

    caller = threading.Thread(target=call)
    caller.start()
    worker = psutil.Process(session._worker.process.pid)
    program = [each for each in worker.children(recursive=True) if not each.children()]
    while not any(each.cpu_times().user > 0.1 for each in program):
        time.sleep(0.02)
    os.kill(worker.pid, signal.SIGTERM)
    caller.join()
    assert found and "worker is gone" in found[0]
    assert_nothing_is_left(before, left_before)


@pytest.mark.parametrize("which", ["worker", "zygote", "init", "interpreter"])
def test_whatever_process_of_a_session_is_killed_nothing_is_left(which, public_folder):
    before, left_before = descendants(), left_behind()
    with adopting_orphans():
        session = opened("me-namespaces", public_folder)
        session.run(BUSY)
        worker = psutil.Process(session._worker.process.pid)
        zygote, init = children_in_order(worker)
        victim = {"worker": worker, "zygote": zygote, "init": init, "interpreter": init.children()[0]}[which]
        victim.kill()
        assert not wait_for_end([victim])
        if which == "zygote":
            assert session.run("6 * 7").value == "42"
        elif which == "interpreter":
            assert "ended by SIGKILL" in session.run("6 * 7").lost
            assert session.run("6 * 7").value == "42"
        else:
            with pytest.raises(SandboxError):
                session.run("6 * 7")
        session.close()
        assert_nothing_is_left(before, left_before)


def test_many_calls_and_interpreters_in_a_row_leave_nothing(public_folder):
    session = opened("me-namespaces", public_folder)
    try:
        worker = psutil.Process(session._worker.process.pid)

        def held():
            return worker.num_fds(), len(descendants(worker.pid))

        before = held()
        for index in range(60):
            session.run("x = 1" if index % 3 else "import os\nos._exit(1)")
        session.run("1")
        assert held() == before
    finally:
        session.close()
