"""The tool `python`: what a model's code and its result look like. What code may do: tests/sandbox."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fakes.processes import descendants, wait_for_end

from asyncrl.turns.built_in_tools import NO_OUTPUT, PythonTool, told, unfenced
from asyncrl.turns.environment import EnvironmentUnavailable, Recovery
from sandbox.session import SessionResult
from sandbox.settings import SandboxSettings
from verifiers.plugins import checked

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> Iterator[PythonTool]:
    found = PythonTool(timeout_seconds=100)
    yield found
    found.close()


@pytest.mark.parametrize(
    "written",
    [
        "```python\nprint(1)\nprint(2)\n```",
        "```\nprint(1)\nprint(2)\n```",
        "```py\nprint(1)\nprint(2)\n```\n",
        "\n  ```Python3 \nprint(1)\nprint(2)\n```  \n",
        "````python\nprint(1)\nprint(2)\n````",
        "```python\nprint(1)\nprint(2)",
        "print(1)\nprint(2)",
    ],
)
def test_a_fence_around_code_is_no_part_of_it(written):
    assert unfenced(written) == "print(1)\nprint(2)"


@pytest.mark.parametrize("code", ["x = '''\n```python\na\n```\n'''", "print('```')", "", "```", "# ```\n1"])
def test_a_fence_inside_of_code_is_part_of_it(code):
    assert unfenced(code) == code


def test_a_call_says_what_was_printed_then_the_value_then_the_traceback(tool):
    assert tool("```python\nx = 20\nprint('a')\nx + 1\n```") == "a\n21"
    assert tool("x * 2") == "40"
    assert tool("y = 1") == NO_OUTPUT
    text = tool("def half(n):\n    print('half')\n    return n / 0\nhalf(4)")
    assert text.startswith("half\nTraceback (most recent call last):\n") and text.endswith("division by zero")
    # Two frames, and none of what runs them.
    assert re.findall(r'File "<call \d+>", line (\d+), in (.*)', text) == [("4", "<module>"), ("3", "half")]
    assert text.count("File ") == 2


def test_what_is_missing_is_refused_politely(tool):
    assert "there is no input here" in tool("name = input('Your name? ')")
    assert "no display: print numbers instead" in tool("import matplotlib.pyplot as plt\nplt.plot([1])")


def test_a_fresh_tool_keeps_nothing_and_says_so():
    fresh = PythonTool(fresh=True, timeout_seconds=100)
    try:
        assert fresh("x = 1\nx") == "1"
        assert fresh("x").endswith("NameError: name 'x' is not defined")
        assert fresh.recovery is Recovery.STATELESS
        assert "are gone" in fresh.__doc__ and "are kept" not in fresh.__doc__
        assert PythonTool.recovery is Recovery.REPLAYABLE and "are kept" in PythonTool.__doc__
    finally:
        fresh.close()


CONVERSATION = (
    "import random\nrandom.random(), random.sample(range(1000), 5)",
    "import numpy as np\nnp.random.rand(3), hash('text'), list({'b', 'a', 'c'})",
    "def f(): pass\nclass A: pass\nprint(f, A(), object())\nf",
    "import os\nos._exit(1)",
    "random.random()",
    "import random\nrandom.random()\n",
    "print(open)\nwith open('kept', 'w') as file: file.write('a')",
    "import os\nos.listdir('.'), os.getpid(), os.environ['HOME']",
    "raise ValueError(A)",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(900,), daemon=True).start()",
    "x = 5",
)


def test_a_replay_answers_alike():
    """A conversation that is played again in a new process must read what it read."""
    answers = []
    for _ in range(2):
        tool = PythonTool(timeout_seconds=100)
        try:
            answers.append([tool(code) for code in CONVERSATION])
        finally:
            tool.close()
    assert answers[0] == answers[1]
    assert "<function f at 0x...>" in answers[0][2]
    assert "[1 thread of the code not finished: paused until the next call]" in answers[0][9:][0]


def test_limits_and_losses_are_told_in_sentences():
    lost = SessionResult(
        stdout="a\n", limit="the call ran longer than 2 s", lost="the call ran longer than 2 s"
    )
    assert told(lost) == (
        "a\n[The call ran longer than 2 s. All variables are lost; the next call starts a new interpreter.]"
    )
    assert told(SessionResult(limit="the code has 9 bytes; at most 8 are allowed")) == (
        "[Not run: the code has 9 bytes; at most 8 are allowed.]"
    )
    assert told(SessionResult(stdout="a\n\n", value="''", num_threads=2)) == (
        "a\n''\n[2 threads of the code not finished: paused until the next call]"
    )
    assert told(SessionResult(seconds=3.0)) == NO_OUTPUT


def test_a_call_that_is_too_long_loses_the_variables_and_not_the_tool():
    tool = PythonTool(timeout_seconds=2)
    try:
        text = tool("x = 1\nprint('begun')\nwhile True: pass")
        assert text.startswith("begun\n[The call ran longer than 2 s. All variables are lost")
        assert tool("x").endswith("NameError: name 'x' is not defined")
    finally:
        tool.close()


def test_a_sandbox_that_refuses_or_breaks_is_no_answer():
    tool = PythonTool()
    tool._settings = SandboxSettings(command=(sys.executable, "-c", "raise SystemExit(1)"))
    with pytest.raises(EnvironmentUnavailable, match="the tool python: no isolation on this machine"):
        tool("1")
    tool.close()
    broken = PythonTool(timeout_seconds=100)
    assert broken("1") == "1"
    os.kill(broken._session._worker.process.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentUnavailable, match="worker is gone"):
        broken("1")
    broken.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout_seconds": 0}, "'timeout_seconds'"),
        ({"memory_mib": 8}, "'memory_mib'.*64"),
        ({"fresh": "yes"}, "'fresh'"),
        ({"packages": ["numpy"]}, "no option 'packages'"),
    ],
)
def test_options_are_checked_before_anything_starts(options, words):
    with pytest.raises(ValueError, match=words):
        checked("python", PythonTool, options)


def test_nothing_starts_before_the_first_call_and_nothing_is_left_after_close():
    before = descendants()
    tool = PythonTool(timeout_seconds=100)
    assert descendants() == before
    assert tool("import os\nif os.fork() == 0:\n    import time; time.sleep(900)\n1") == "1"
    assert len(descendants() - before) >= 4
    tool.close()
    tool.close()
    assert not wait_for_end(descendants() - before)


def test_a_tool_in_a_forked_process_dies_with_it():
    """An episode's process is forked from a template, and killed when it is late."""
    program = (
        f"import os, sys, time\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from asyncrl.turns.built_in_tools import PythonTool\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    tool = PythonTool(timeout_seconds=1000)\n"
        "    tool('x = 1')\n"
        "    print(os.getpid(), flush=True)\n"
        "    tool('while True: pass')\n"
        "os.waitpid(pid, 0)\ntime.sleep(900)\n"
    )
    before = descendants()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as template:
        episode = psutil.Process(int(template.stdout.readline()))
        inside = descendants(episode.pid)
        assert len(inside) >= 4
        episode.kill()
        assert not wait_for_end([episode, *inside])
        template.kill()
    assert not wait_for_end(descendants() - before)
