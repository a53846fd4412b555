"""Ordinary programs run as they would anywhere."""

import os
import time

import pytest

from sandbox.result import Status


def test_an_honest_program_runs_to_its_end(box, honest_program):
    if honest_program.tiers and box.tier.value not in honest_program.tiers:
        pytest.skip(f"the tier {box.tier.value} cannot offer this; {', '.join(honest_program.tiers)} can")
    result = box.run(honest_program.source, lang=honest_program.lang, limits=honest_program.limits)
    assert result.status is Status.OK, result
    assert result.stdout.splitlines()[-1] == b"fine", result
    assert (result.exit_code, result.signal, result.tier) == (0, None, box.tier)


def test_ten_megabytes_of_input_reach_the_program_and_come_back(box):
    data = os.urandom(1 << 20).hex().encode() * 5
    result = box.run("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())", stdin=data)
    assert result.status is Status.OK
    assert result.stdout == data


def test_output_is_binary_safe(box):
    result = box.run(
        "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.buffer.write(b'\\xff')"
    )
    assert (result.stdout, result.stderr) == (bytes(range(256)), b"\xff")


def test_a_fresh_interpreter_runs_the_same_program(box):
    source = "import sys; print(sum(map(int, sys.stdin.read().split())), __name__, exit.__class__.__name__)"
    warm, fresh = (box.run(source, stdin=b"3 4", fresh=fresh) for fresh in (False, True))
    assert warm.stdout == fresh.stdout == b"7 __main__ Quitter\n"


@pytest.mark.parametrize("fresh", [False, True])
def test_an_uncaught_exception_exits_with_one_and_a_traceback_of_the_program_alone(box, fresh):
    result = box.run("def f():\n    raise KeyError('x')\nf()", fresh=fresh)
    assert (result.status, result.exit_code) == (Status.WRONG_EXIT, 1)
    lines = result.stderr.decode().splitlines()
    assert lines[0].startswith("Traceback") and lines[-1] == "KeyError: 'x'"
    assert sum("File" in line for line in lines) == 2


def test_the_exit_code_and_the_signal_are_reported(box):
    left = box.run("import sys; sys.exit(3)")
    said = box.run("import sys; sys.exit('words')")
    died = box.run("import os, signal; os.kill(os.getpid(), signal.SIGUSR1)")
    assert (left.status, left.exit_code, left.signal) == (Status.WRONG_EXIT, 3, None)
    assert (said.exit_code, said.stderr) == (1, b"words\n")
    assert (died.status, died.exit_code, died.signal) == (Status.SIGNAL, None, 10)


def test_time_and_memory_are_measured(box):
    began = time.monotonic()
    result = box.run(
        "import time\nx = b'x' * (60 << 20)\nend = time.process_time() + 0.2\n"
        "while time.process_time() < end: pass\ntime.sleep(0.2)"
    )
    # One thread of its own beside what starts it; the whole call took longer than the program.
    assert 0.2 <= result.cpu_seconds < 2 * result.wall_seconds
    assert 0.4 <= result.wall_seconds <= time.monotonic() - began
    assert 60 << 20 <= result.peak_memory_bytes < 120 << 20


def test_numpy_is_there_where_the_interpreter_has_it(box):
    if box.user == "nobody":
        pytest.skip("the interpreter that everyone may execute is asked for no packages here")
    if box.tier.value == "landlock" and os.getuid() == 0:
        pytest.skip("as root the landlock tier runs the system's interpreter here")
    pytest.importorskip("numpy")
    result = box.run(
        "import numpy as np; print(np.linalg.inv(np.eye(3)).sum(), np.random.default_rng(1).random() < 1)"
    )
    assert result.stdout == b"3.0 True\n", result


def test_two_runs_draw_different_random_numbers(box):
    first, second = (box.run("import random; print(random.random())") for _ in range(2))
    assert first.stdout != second.stdout


def test_a_run_knows_its_own_thread_id(box):
    """libc keeps it where a bare clone would leave the zygote's: threads signal the main thread by it."""
    source = (
        "import os, signal, threading\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('fine', flush=True) or os._exit(0))\n"
        "main = threading.main_thread().ident\n"
        "threading.Thread(target=lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()\n"
        "while True: signal.pause()\n"
    )
    result = box.run(source)
    assert (result.status, result.stdout) == (Status.OK, b"fine\n"), result
