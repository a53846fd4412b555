"""Programs that are forked from one with their libraries: what they share, and when each is started."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.records import make_task

from asyncrl.recipe import Agent
from asyncrl.rollout.agents.process import Access, Exit, ProcessPrograms, Programs
from asyncrl.rollout.agents.warm import WarmPrograms, python_arguments
from asyncrl.rollout.agents.warm_host import WarmHost
from sandbox import landlock

LOOK = """
import gc, json, os, random, resource, signal, sys, threading
folder = os.path.dirname(os.getcwd())
found = {
    "variables": {name: value.replace(folder, "FOLDER") for name, value in os.environ.items()},
    "path": [part.replace(folder, "FOLDER") for part in sys.path],
    "argv": sys.argv, "name": __name__, "file": globals().get("__file__"),
    "main": vars(sys.modules["__main__"]) is globals(),
    "descriptors": [each for each in range(300) if os.path.exists(f"/proc/self/fd/{each}")],
    "signals": [str(signal.getsignal(each)) for each in signal.valid_signals()],
    "limits": [resource.getrlimit(each) for each in range(16)],
    "leads": os.getsid(0) == os.getpid() == os.getpgid(0), "umask": os.umask(0), "gc": gc.isenabled(),
    "streams": [[each.encoding, each.errors] for each in (sys.stdin, sys.stdout)], "read": sys.stdin.read(),
    "status": [line for line in open("/proc/self/status") if line.startswith(("Cap", "NoNewPrivs"))],
    "threads": threading.active_count(), "depth": sys.getrecursionlimit() > 900,
}
with open(os.environ["FOUND"], "w") as file:
    json.dump(found, file)
"""


def programs_of(code: str, folder: Path, **settings: Any) -> WarmPrograms:
    (folder / "agent.py").write_text(code)
    arguments, hidden = [str(folder / "agent.py"), "--fast"], settings.pop("hidden", ())
    processes = ProcessPrograms([sys.executable, *arguments], Agent(**settings), hidden)
    return WarmPrograms(processes, arguments)


async def exit_from(programs: Programs) -> Exit:
    ended = asyncio.Event()
    program = await programs.start(make_task(), Access("http://127.0.0.1:1/v1", "sk-own"), ended.set)
    await ended.wait()
    await program.end()
    found = program.exit()
    assert found is not None
    return found


@pytest.mark.parametrize("module", [[], ["-m", "look"]], ids=["script", "module"])
async def test_a_program_finds_what_a_new_interpreter_would(module: list[str], tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(tmp_path), "MINE": "1", "FOUND": str(tmp_path / "found")}
    programs = programs_of(LOOK, tmp_path, environment=environment, hidden=[tmp_path / "rows"])
    for name in ("look.py", "found"):
        (tmp_path / name).write_text(LOOK)
    if module:
        programs.arguments = programs.processes.command = [*module, "--fast"]
        programs.processes.command = [sys.executable, *programs.processes.command]

    async def look(programs: Programs) -> dict[str, Any]:
        assert (await exit_from(programs)).code == 0
        found: dict[str, Any] = json.loads((tmp_path / "found").read_text())
        return found

    cold = await look(programs.processes)
    async with programs:
        first = await look(programs)
        await programs.imported()
        warm = await look(programs)
    assert not programs.cold
    for found in (first, warm):
        assert {name: found[name] for name in cold if found[name] != cold[name]} == {}, cold


async def test_libraries_are_imported_once_and_files_of_the_program_each_time(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("import wave, random\nnumber = random.random()\n")
    code = (
        "import sys\nprint('wave' in sys.modules)\nimport tool\nprint('tool', tool.number)\nimport chunk_of\n"
    )
    (tmp_path / "chunk_of.py").write_text("")
    async with programs_of(code, tmp_path) as programs:
        details = [(await exit_from(programs)).detail.split()]
        await programs.imported()
        details += [(await exit_from(programs)).detail.split() for _ in range(2)]
    assert [found[0] for found in details] == ["False", "True", "True"]
    assert len({found[2] for found in details}) == 3, "each draws its own numbers"


@pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="no Landlock")
async def test_programs_of_one_template_read_no_variables_of_each_other(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "other = [name for name in os.listdir(sys.path[0]) if name.isdigit()]\n"
        "open(f'{sys.path[0]}/{os.getpid()}', 'w').close()\n"
        "if not other: time.sleep(600)\n"
        "open(f'/proc/{other[0]}/environ')\n"
    )
    async with programs_of(code, tmp_path) as programs:
        waiting = await programs.start(make_task(), Access("http://127.0.0.1:1/v1", "sk-1"), lambda: None)
        while not [name for name in os.listdir(tmp_path) if name.isdigit()]:
            await asyncio.sleep(0.01)
        found = await exit_from(programs)
        await waiting.end()
    assert found.code == 1 and "PermissionError" in found.detail


async def test_when_the_template_dies_its_programs_are_lost_and_start_alone(tmp_path: Path) -> None:
    async with programs_of("import os, time\nif os.getppid() != 1: time.sleep(600)", tmp_path) as programs:
        ended = asyncio.Event()
        program: Any = await programs.start(make_task(), Access("http://127.0.0.1:1/v1", "sk-1"), ended.set)
        parent = int(Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        await ended.wait()
        assert program.exit().is_lost and "has died" in programs.cold
        await program.end()
        again: Any = await programs.start(make_task(), Access("http://127.0.0.1:1/v1", "sk-1"), ended.set)
        parent = int(Path(f"/proc/{again.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent == os.getpid()
        await again.end()


async def test_a_file_in_front_of_a_module_that_is_imported_has_each_program_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "json.py").write_text("mine = 1\n")
    async with programs_of("import json\nprint(json.mine)", tmp_path) as programs:
        assert await exit_from(programs) == Exit(0, "1")
    assert f"{tmp_path / 'json.py'} stands in front of" in programs.cold and programs.cold in caplog.text


@pytest.mark.parametrize(
    ("source", "changed", "words"),
    [
        ("import os\nkey = os.getenv('OPENAI_API_KEY')", {}, "reads OPENAI_API_KEY"),
        ("import os\nmode = os.environ.get('MODE')", {"MODE": "fast"}, "reads MODE"),
        ("import os\nos.environ.setdefault('MODE', 'fast')", {"MODE": "fast"}, ""),
        ("import os\nhome = os.path.expanduser('~')", {"OTHER": "1"}, ""),
        (
            "import os, threading\n"
            "threading.Thread(target=lambda: os.close(os.open(FIFO, os.O_RDONLY)), daemon=True).start()",
            {},
            "thread",
        ),
    ],
)
def test_a_library_that_takes_something_of_a_trajectory_is_not_shared(
    source: str, changed: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    (tmp_path / f"library_{tmp_path.name}.py").write_text(source.replace("FIFO", repr(str(fifo))))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("MODE", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    cold = WarmHost()._import([f"library_{tmp_path.name}"], ["OPENAI_API_KEY"], changed)
    if "thread" in words:
        os.close(os.open(fifo, os.O_WRONLY))
    monkeypatch.setenv("MODE", "")
    assert words in cold and bool(words) == bool(cold)


def of_python(*arguments: str) -> Callable[[Path], list[str]]:
    return lambda folder: ["python", *(part.replace("HERE", str(folder)) for part in arguments)]


@pytest.mark.parametrize(
    ("command", "is_warm"),
    [
        (of_python("HERE/agent.py", "--fast"), True),
        (of_python("-m", "package.agent"), True),
        (of_python("-c", "pass"), False),
        (of_python("-u", "HERE/agent.py"), False),
        (of_python("agent.py"), False),
        (of_python("HERE/none.py"), False),
        (lambda folder: ["/usr/bin/env", "python", f"{folder}/agent.py"], False),
        (lambda folder: ["no-such-program"], False),
    ],
)
def test_what_this_python_runs_is_forked(
    command: Callable[[Path], list[str]], is_warm: bool, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").touch()
    found = command(tmp_path)
    assert python_arguments(found, os.path.dirname(sys.executable)) == (found[1:] if is_warm else None)


async def test_a_report_that_is_none_has_each_program_started(tmp_path: Path) -> None:
    code = "import atexit, os\natexit.register(os._exit, 0)\nopen('.modules.json', 'w').write('[')\n"
    async with programs_of(code, tmp_path) as programs:
        assert await exit_from(programs) == Exit(0)
        await programs.imported()
        assert await exit_from(programs) == Exit(0)
    assert "cannot be imported: JSONDecodeError" in programs.cold
