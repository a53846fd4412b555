"""Sessions: what the code of one call leaves to the next, what it is told in words, and that nothing it does
is a fault. What a session leaves behind: test_session_ends.py."""

import os
import re
from collections.abc import Callable, Iterator

import pytest

from sandbox.command import MEBIBYTE
from sandbox.result import SandboxError, Tier
from sandbox.session import Session, SessionLimits, SessionRefused, SessionResult
from sandbox.settings import SandboxSettings
from tests.sandbox.conftest import kinds_of_box, settings_for

PATIENT = SessionLimits(call_seconds=100, total_seconds=1000, memory_bytes=256 * MEBIBYTE, processes=16)
"""Nothing ends a call because the machine is busy."""
Open = Callable[..., Session]


@pytest.fixture(scope="module", params=kinds_of_box())
def open_session(request: pytest.FixtureRequest, public_folder) -> Iterator[Open]:
    """Opens sessions in one kind of box, which end with the tests."""
    user, _, name = request.param.partition("-")
    settings = settings_for(user, Tier(name), public_folder)
    opened = []

    def open_one(limits: SessionLimits = PATIENT, **options: object) -> Session:
        try:
            opened.append(Session.open(limits, settings=settings, **options))
        except SessionRefused as error:
            pytest.skip(f"this machine has no {name} for {user}: {error}")
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture(scope="module")
def shared(open_session: Open) -> Session:
    """One session for tests whose code leaves nothing that others mind."""
    return open_session()


def said(result: SessionResult) -> str:
    return "\n".join((result.stdout, result.value or "", result.traceback, result.limit, result.lost))


def test_variables_files_and_imports_are_kept_between_calls(shared):
    first = shared.run("import os\nx = 20\nopen('kept', 'w').write('abc')\nprint(x)")
    assert (first.stdout, first.value, first.traceback, first.limit, first.lost) == ("20\n", None, "", "", "")
    assert shared.run("x += 1\nx * 2").value == "42"
    assert shared.run("open('kept').read(), sorted(os.listdir('.'))").value == "('abc', ['kept'])"


def test_the_value_of_the_last_expression_is_shown_and_none_is_not(shared):
    assert shared.run("'a' 'b'").value == "'ab'"
    assert shared.run("None").value is None
    assert shared.run("y = 3").value is None
    assert shared.run("").value is None
    assert shared.run("# nothing\n").value is None
    assert shared.run("if True:\n    5").value is None


def test_a_traceback_has_the_frames_of_the_code_alone(shared):
    found = shared.run("import json\ndef load(text):\n    return json.loads(text)\nload('{')").traceback
    assert re.findall(r'File "(.*?)", line (\d+), in (.*)', found) == [
        (found.split('"')[1], "4", "<module>"),
        (found.split('"')[1], "3", "load"),
    ]
    assert "    return json.loads(text)" in found and "JSONDecodeError: Expecting property name" in found
    chained = shared.run(
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError(5) from error"
    )
    assert "direct cause" in chained.traceback and "console" not in chained.traceback
    assert shared.run("1 +").traceback.endswith("SyntaxError: invalid syntax\n")
    assert "RecursionError" in shared.run("def f(): f()\nf()").traceback


def test_errors_and_warnings_stand_where_they_were_written(shared):
    code = (
        "import os, sys\nprint(1)\nprint(2, file=sys.stderr)\nprint(3)\n_ = os.system('echo 4; echo 5 >&2')"
    )
    assert shared.run(code).stdout == "1\n2\n3\n4\n5\n"


def test_output_is_cut_in_the_middle_while_it_is_written(shared):
    found = shared.run("print('a' + 'x' * 10_000_000 + 'b')").stdout
    assert found.startswith("axxx") and found.endswith("xxxb\n") and len(found) < 17000
    assert "[... 9983619 bytes were left out here ...]" in found
    # 10,000,002 characters of a repr that keeps 8192.
    value = shared.run("'x' * 10_000_000").value
    assert value.startswith("'xxx") and value.endswith("xxx'") and "[... 9991810 characters" in value


def test_input_and_plots_are_refused_in_words(shared):
    for code in (
        "input('name?')",
        "import sys\nsys.stdin.readline()",
        "import sys\nfor line in sys.stdin: pass",
    ):
        assert "EOFError: there is no input here: write the values into the code" in said(shared.run(code)), (
            code
        )
    assert shared.run("import os\nos.read(0, 10)").value == "b''"
    for _ in range(2):
        found = shared.run("import matplotlib.pyplot as plt")
        assert "No module named 'matplotlib'; no display: print numbers instead" in found.traceback
    assert shared.run("try:\n    import seaborn\nexcept ImportError:\n    print('none')").stdout == "none\n"


def test_chance_is_the_same_in_each_session_of_a_seed(open_session):
    code = "import random\nrandom.random(), hash('a'), list({'a', 'b', 'c'})"
    first, second, other = (open_session(seed=seed).run(code).value for seed in (1, 1, 2))
    assert first == second != other
    assert first.split(",")[1:] == other.split(",")[1:]


def test_a_fresh_session_keeps_nothing(open_session):
    fresh = open_session(is_fresh=True)
    assert fresh.run("x = 1\nopen('file', 'w').write('a')\nimport random\nrandom.random()").value is not None
    assert "NameError" in fresh.run("x").traceback
    assert fresh.run("import os\nos.listdir('.')").value == "[]"
    chances = {fresh.run("import random\nrandom.random()").value for _ in range(2)}
    assert len(chances) == 1
    assert fresh.run("import os\nos._exit(4)").lost == "the interpreter ended: exit code 4"
    assert fresh.run("1 + 1").value == "2"


FORGED = """
import os, sys
frame = sys._getframe()
while "request" not in frame.f_locals: frame = frame.f_back
link, nonce = frame.f_locals["self"]._link, frame.f_locals["request"][:16]
"""
"""Takes the interpreter over: finds its link and the nonce of this call."""

# Name -> (code, what is said to the model)
HOSTILE = {
    "exit": ("import os\nprint('a', flush=True)\nos._exit(3)", "a\n.*the interpreter ended: exit code 3"),
    "exit in order": ("import os\nos._exit(0)", "the interpreter ended: exit code 0"),
    "sys.exit": ("import sys\nsys.exit('bye')", "SystemExit: bye"),
    "quit": ("quit()", "SystemExit"),
    "suicide": ("import os\nos.kill(os.getpid(), 9)", "the interpreter ended: ended by SIGKILL"),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", "the interpreter ended: ended by SIGSEGV"),
    "closed stream": ("import sys\nsys.stdout.close()\nprint(1)", "ValueError: I/O operation on closed file"),
    "closed output": ("import os\nprint('a', flush=True)\nos.close(1)\nos.close(2)\n5", "a\n.*5"),
    "replaced output": ("import sys, io\nsys.stdout = io.StringIO()\nprint('a')\n6", "6"),
    "every descriptor": ("import os\nos.closerange(0, 512)\n7", "the code made its interpreter unusable"),
    "builtins": (
        "import builtins\nfor name in list(vars(builtins)):\n    vars(builtins)[name] = None\n",
        "made its interpreter unusable|^\\s*$|TypeError",
    ),
    "print": ("import builtins\nbuiltins.print = builtins.len = builtins.repr = None\n8", "8"),
    "print and fail": (
        "import builtins\nbuiltins.len = builtins.isinstance = None\n1 / 0",
        "ZeroDivisionError",
    ),
    "traceback": (
        "import traceback\ntraceback.TracebackException = None\n1 / 0",
        "made its interpreter unusable",
    ),
    "recursion limit": ("import sys\nsys.setrecursionlimit(60)\n9", "9"),
    "trace": (
        "import sys\nsys.settrace(lambda *_: 1 / 0)\nsys.setprofile(lambda *_: 1 / 0)",
        "ZeroDivisionError|^\\s*$",
    ),
    "repr": ("class A:\n    def __repr__(self): raise KeyError(1)\nA()", "KeyError: 1"),
    "repr is no text": (
        "class A:\n    def __repr__(self): return 5\nA()",
        "TypeError: __repr__ returned non-string",
    ),
    "repr lies": (
        "class S(str):\n    def __len__(self): return 0\n    def __getitem__(self, _): return 1 / 0\n"
        "class A:\n    def __repr__(self): return S('x' * 99999)\nA()",
        "characters were left out here",
    ),
    "error that exits": (
        "import os\nclass E(Exception):\n    def __str__(self): os._exit(9)\nraise E",
        "the interpreter ended: exit code 9",
    ),
    "error without text": (
        "class E(Exception):\n    def __str__(self): raise KeyError\nraise E",
        "str\\(\\) failed",
    ),
    "endless error": ("raise ValueError('x' * 10_000_000)", "characters were left out here"),
    "own frames": ("del __builtins__\n1", "1|NameError|KeyError"),
    "child to the end": ("import os\nif os.fork():\n    os.wait()\nprint('a')", "a\na"),
    "child that fails": ("import os\nif os.fork() == 0:\n    1 / 0\nos.wait()[1]", "ZeroDivisionError.*256"),
    "child that stays": ("import os, time\nif os.fork() == 0:\n    time.sleep(900)\n3", "3"),
    "signals": (
        "import os, signal\nos.kill(1 if os.getppid() == 1 else os.getpid(), signal.SIGCONT)\n4",
        "4",
    ),
    "memory": ("bytearray(1 << 40)", "MemoryError"),
    "memory bit by bit": ("found = []\nwhile True: found.append(bytearray(1 << 20))", "MemoryError|memory"),
    "descriptors": ("found = []\nwhile True: found.append(open('/dev/null'))", "Too many open files"),
    "surrogates": ("print('\\udc80')\n'\\udc80'", r"\\udc80.*'\\udc80'"),
    "no text": ("import os\nos.write(1, bytes(range(256)))", "256"),
    "network": ("import socket\nsocket.create_connection(('127.0.0.1', 80), 5)", "Error"),
    "end marks": ("print('\\0ready\\n' * 3, '[END]', '>>>')", "ready"),
    "noise": (
        "import os\nfor number in range(3, 512):\n    try: os.write(number, b'ready' + bytes(99))\n"
        "    except OSError: pass\n11",
        "11",
    ),
    "forged answer": (
        FORGED + "import struct\nos.write(link, nonce + struct.pack('<qqq', 1, 0, 0) + b'5')\n12",
        "^\\s*5\\s*$",
    ),
    "forged ahead": (
        FORGED + "import struct\n"
        "for _ in range(20): os.write(link, nonce + struct.pack('<qqq', 1, 0, 0) + b'5')\n12",
        "^\\s*5\\s*$",
    ),
    "forged sizes": (
        FORGED + "import struct\n"
        "for sizes in ((1 << 40, 0, 0), (-7, 0, 0), (0, -1, 0), (-1, 1 << 62, 1), (5, 5, 5)):\n"
        "    os.write(link, nonce + struct.pack('<qqq', *sizes) + b'5')\nos.write(link, nonce)\n13",
        "13",
    ),
    "forged at length": (
        FORGED
        + "import struct\nos.write(link, nonce + struct.pack('<qqq', 200000, 0, 0) + bytes(200000))\n14",
        "14",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_code_does_is_said_in_words_and_the_next_call_runs(name, shared):
    code, expected = HOSTILE[name]
    found = shared.run(code)
    assert re.search(expected, said(found), re.DOTALL), found
    assert len(said(found)) < 40_000
    again = shared.run("print(sorted([2, 1]), len('abc'))\n6 * 7")
    assert (again.stdout, again.value, again.traceback) == ("[1, 2] 3\n", "42", ""), (found, again)


# Name -> (code, what is said to the model)
OVER_LIMIT = {
    "loop": ("print('begun')\nwhile True: pass", "begun\n.*the call ran longer than 2 s"),
    "sleep": ("import time\ntime.sleep(900)", "the call ran longer than 2 s"),
    "deaf": (
        "import signal, time\nfor number in range(1, 32):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except OSError: pass\nwhile True: pass",
        "the call ran longer than 2 s",
    ),
    "lock": (
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        "the call ran longer than 2 s",
    ),
    "stopped": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "the call ran longer than 2 s"),
    "flood": ("while True: print('x' * 1000)", "xxx.*left out here.*the call ran longer than 2 s"),
    "error without an end": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        "longer",
    ),
    "fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "the call ran longer than 2 s|had \\d+ processes|want of memory|together held|interpreter ended",
    ),
    "hogs together": (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        data = b'x' * (100 << 20)\n"
        "        time.sleep(900)\ntime.sleep(900)",
        "the call ran longer than 2 s|want of memory|together held",
    ),
    "loop after an answer": (
        FORGED
        + "import struct\nos.write(link, nonce + struct.pack('<qqq', 1, 0, 0) + b'5')\nwhile True: pass",
        "^\\s*5\\s*$",
    ),
}


@pytest.mark.parametrize("name", OVER_LIMIT)
def test_what_has_no_end_is_ended_by_a_limit_and_the_next_call_runs(name, open_session):
    code, expected = OVER_LIMIT[name]
    with open_session(SessionLimits(call_seconds=2, memory_bytes=256 * MEBIBYTE, processes=16)) as own:
        found = own.run(code)
        assert re.search(expected, said(found), re.DOTALL), found
        if name == "loop after an answer":
            assert own.run("1").limit == "the call ran longer than 2 s"
        assert own.run("6 * 7").value == "42"


def test_a_full_disk_is_the_codes_error(open_session):
    with open_session(SessionLimits(call_seconds=100, disk_bytes=8 * MEBIBYTE)) as own:
        code = "for index in range(64):\n    with open(f'f{index}', 'wb') as file: file.write(bytes(1 << 20))"
        for _ in range(3):
            # Short as it is, it is not over before it was measured.
            assert re.search("No space left|its files together held", said(own.run(code)))
            assert own.run("import os\nfor each in os.listdir('.'): os.unlink(each)\n6 * 7").value == "42"


def test_cpu_time_is_that_of_all_calls_together(open_session):
    limits = SessionLimits(call_seconds=100, cpu_seconds=1)
    with open_session(limits) as own:
        code = "import time\nwhile time.process_time() < {}: pass\n5"
        assert own.run(code.format(0.5)).value == "5"
        found = own.run(code.format(30))
        assert found.limit == found.lost == "the session used more than 1 s of CPU time"
        assert own.run("1") == SessionResult(limit="the session's 1 s of CPU time are used up")


def test_time_on_the_clock_is_that_of_all_calls_together(open_session):
    with open_session(SessionLimits(call_seconds=2, total_seconds=3)) as own:
        assert own.run("while True: pass").limit == "the call ran longer than 2 s"
        assert own.run("while True: pass").limit == "the session's calls together ran longer than 3 s"
        assert own.run("1") == SessionResult(limit="the 3 s that the session's calls may take are used up")


def test_threads_are_counted_stand_still_between_calls_and_continue_with_the_next(open_session):
    own = open_session()
    code = (
        "import threading, time\nnum_turns = 0\ndef turn():\n    global num_turns\n    while True:\n"
        "        num_turns += 1\n        time.sleep(0.001)\n"
        "threading.Thread(target=turn, daemon=True).start()"
    )
    assert own.run(code).num_threads == 1
    wait = "before = num_turns\nwhile num_turns == before: time.sleep(0.001)\n'turned'"
    for _ in range(3):
        assert own.run(wait).value == "'turned'"


def test_an_interpreter_that_ends_between_two_calls_is_told_with_the_next(open_session):
    own = open_session()
    # The thread ends its process as soon as it may run again: after the answer, or with the next request.
    code = (
        "import os, threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), os._exit(6))).start()\n5"
    )
    assert re.search("5|exit code 6", said(own.run(code)))
    assert "exit code 6" in own.run("import time\ntime.sleep(90)").lost
    assert own.run("6 * 7").value == "42"


def test_code_that_is_too_long_is_refused_in_words(shared):
    assert shared.run("x" * 140_000).limit == "the code has 140000 bytes; at most 131072 are allowed"
    assert shared.run("1").value == "1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"call_seconds": 0}, "call_seconds is 0; expected a number above 0"),
        ({"total_seconds": float("nan")}, "total_seconds is nan"),
        ({"cpu_seconds": 0.5}, "cpu_seconds is 0.5; expected at least 1"),
        ({"memory_bytes": 1024}, "memory_bytes is 1024; expected at least 67108864"),
        ({"processes": "4"}, "processes is '4'"),
        ({"excerpt_bytes": True}, "excerpt_bytes is True"),
    ],
)
def test_limits_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        SessionLimits(**options)


def test_a_machine_without_isolation_refuses_with_the_reasons():
    import sys

    broken = SandboxSettings(command=(sys.executable, "-c", "raise SystemExit(1)"))
    with pytest.raises(SessionRefused, match="no isolation on this machine.*namespaces:.*landlock:.*doctor"):
        Session.open(settings=broken)


def test_a_broken_sandbox_is_a_fault_and_closes_the_session(open_session):
    import psutil

    own = open_session()
    worker = psutil.Process(own._worker.process.pid)
    worker.kill()
    with pytest.raises(SandboxError, match="worker is gone"):
        own.run("1")
    with pytest.raises(SandboxError, match="the session is closed"):
        own.run("1")


def test_it_says_by_what_the_code_was_confined(shared):
    assert shared.tier in (Tier.NAMESPACES, Tier.LANDLOCK)
    assert os.getpid() != int(shared.run("import os\nos.getpid()").value)
