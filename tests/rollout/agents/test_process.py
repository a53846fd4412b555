"""Agents as processes: what they see, what they may do, and how they end."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.records import make_task

from asyncrl.recipe import Agent
from asyncrl.rollout.agents.process import Access, Exit, ProcessPrograms, Programs, agent_command
from asyncrl.rollout.agents.warm import WarmPrograms
from sandbox import landlock

ACCESS = Access("http://127.0.0.1:1/v1", "sk-own")
needs_landlock = pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="no Landlock")


@pytest.fixture(params=["cold", "warm"])
def start(request: pytest.FixtureRequest) -> str:
    """How Python programs start: what they see, may do and leave is the same."""
    return str(request.param)


@contextlib.asynccontextmanager
async def programs_of(start: str, code: str, *arguments: str, **settings: Any) -> AsyncIterator[Programs]:
    with tempfile.TemporaryDirectory() as folder:
        (script := Path(folder) / "script.py").write_text(code)
        command, hidden = [sys.executable, str(script), *arguments], settings.pop("hidden", ())
        processes = ProcessPrograms(command, Agent(command=command, **settings), hidden)
        if start == "cold":
            yield processes
            return
        async with WarmPrograms(processes, processes.command[1:]) as programs:
            yield programs
            assert not programs.cold


async def exit_of(start: str, code: str, *arguments: str, **settings: Any) -> Exit:
    """How a Python program ended."""
    async with programs_of(start, code, *arguments, **settings) as programs:
        return await exit_from(programs)


async def exit_from(programs: Programs) -> Exit:
    ended = asyncio.Event()
    program = await programs.start(make_task(), ACCESS, ended.set)
    await ended.wait()
    found = program.exit()
    await program.end()
    assert found is not None and not program._folder.exists()  # type: ignore[attr-defined]
    return found


async def test_it_finds_its_task_and_key_and_nothing_of_the_run(
    start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_TOKEN", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    code = (
        "import json, os\n"
        "assert 'secret' not in os.environ.values(), sorted(os.environ)\n"
        "assert os.environ['OPENAI_API_KEY'] == 'sk-own' and os.environ['MINE'] == '1'\n"
        "task = json.load(open(os.environ['ASYNCRL_TASK']))\n"
        "assert task['messages'] == [{'role': 'user', 'content': '1+1='}], task\n"
        "assert task['row'] == {'question': None}\n"
        "open('note', 'w').write('scratch')\n"
        "assert os.path.realpath('.') == os.path.realpath(os.environ['HOME'])\n"
    )
    assert await exit_of(start, code, environment={"MINE": "1"}, columns=["question"]) == Exit(0)


@needs_landlock
async def test_it_reads_neither_the_run_folder_nor_data_nor_the_runs_environment(
    start: str,
    tmp_path: Path,
) -> None:
    run, data, beside = tmp_path / "run", tmp_path / "rows.jsonl", tmp_path / "helper.txt"
    run.mkdir()
    for path in (run / "access.token", data, beside):
        path.write_text("text")
    code = (
        "import os, sys\n"
        "run, data, beside = sys.argv[1:]\n"
        "assert open(beside).read() == 'text' and 'rows.jsonl' in os.listdir(os.path.dirname(data))\n"
        "for path, mode in ((run + '/access.token', 'r'), (data, 'r'), (data, 'a'), (run + '/x', 'w'),\n"
        "                   (f'/proc/{os.getppid()}/environ', 'r')):\n"
        "    try:\n"
        "        open(path, mode)\n"
        "    except PermissionError:\n"
        "        continue\n"
        "    sys.exit(path)\n"
    )
    assert await exit_of(start, code, *map(str, (run, data, beside)), hidden=[run, data]) == Exit(0)


async def test_a_crash_says_what_was_printed_last(start: str) -> None:
    found = await exit_of(start, "raise SystemExit('it broke')")
    assert found == Exit(1, "it broke")
    missing = ProcessPrograms(["/no/such/program"])
    ended = asyncio.Event()
    program = await missing.start(make_task(), ACCESS, ended.set)
    await ended.wait()
    assert program.exit() == Exit(127, "/no/such/program cannot be started: No such file or directory")
    await program.end()


@needs_landlock
async def test_a_file_that_the_isolation_denies_names_it_and_the_folder_to_write_to(
    start: str, tmp_path: Path
) -> None:
    (data := tmp_path / "rows.jsonl").write_text("text")
    found = await exit_of(start, "open(__import__('sys').argv[1], 'w')", str(tmp_path / "new"), hidden=[data])
    assert "PermissionError" in found.detail and "asyncrl's isolation (Landlock) denies" in found.detail
    assert f"({tmp_path})" in found.detail and "HOME and TMPDIR" in found.detail


async def test_memory_is_bounded(start: str) -> None:
    found = await exit_of(start, "x = bytearray(400 * 2**20)", memory_mib=200)
    assert found.code == 1 and "MemoryError" in found.detail


@pytest.mark.parametrize(
    ("written", "expected"),
    [("0.25", Exit(0, score=0.25)), ("", Exit(0)), ("7", None), ("text", None), ("true", None)],
)
async def test_a_verdict_is_a_number_in_its_file(start: str, written: str, expected: Exit | None) -> None:
    code = "import os, sys\nif sys.argv[1]: open(os.environ['ASYNCRL_VERDICT'], 'w').write(sys.argv[1])"
    found = await exit_of(start, code, written, may_give_verdict=True)
    if expected is None:
        assert found.code == 1 and "its verdict cannot be read" in found.detail
    else:
        assert found == expected


async def test_with_roles_the_verdict_has_a_score_for_each(start: str) -> None:
    code = "import os, sys\nopen(os.environ['ASYNCRL_VERDICT'], 'w').write(sys.argv[1])"
    options: Any = {"may_give_verdict": True, "roles": ["proposer", "checker"]}
    found = await exit_of(start, code, '{"proposer": 1, "checker": 0.5}', **options)
    assert found == Exit(0, score={"proposer": 1.0, "checker": 0.5})
    found = await exit_of(start, code, '{"judge": 1}', **options)
    assert found.code == 1 and "its verdict cannot be read: it has a score for 'judge'" in found.detail


async def test_a_verdict_that_it_may_not_give_is_not_read(start: str) -> None:
    code = "import os\nassert 'ASYNCRL_VERDICT' not in os.environ\nopen('verdict.json', 'w').write('1.0')"
    assert await exit_of(start, code) == Exit(0)


async def test_its_end_is_that_of_all_that_it_started(start: str, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "for leaves in (False, True):\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],\n"
        "                     start_new_session=leaves)\n"
        "open('started', 'w').close()\n"
        "time.sleep(600)\n"
    )
    async with programs_of(start, code) as programs:
        program: Any = await programs.start(make_task(), ACCESS, lambda: None)
        while not (program._folder / "work" / "started").exists():
            await asyncio.sleep(0.01)
        children = psutil.Process(program.pid).children(recursive=True)
        assert len(children) == 2
        await program.end()
    gone, alive = psutil.wait_procs(children, timeout=300)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
    assert program.exit().code == -9


async def test_an_async_function_is_an_agent_and_another_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "async def run(task):\n    assert task.api_key == 'sk-own' and task.task_id == 'train:1'\n"
        "    return 0.5\n\n\ndef plain(task):\n    pass\n"
    )

    async def ended(name: str) -> Exit | None:
        command = agent_command(None, f"{tmp_path / 'agent.py'}:{name}", tmp_path)
        programs = ProcessPrograms(command, Agent(may_give_verdict=True))
        done = asyncio.Event()
        program = await programs.start(make_task(), ACCESS, done.set)
        await done.wait()
        await program.end()
        return program.exit()

    assert await ended("run") == Exit(0, score=0.5)
    refused = await ended("plain")
    assert refused is not None and refused.code == 1 and "not an async function" in refused.detail


def test_files_of_a_command_are_found_in_the_recipes_folder(tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    found = agent_command(["python", "agent.py", "--fast"], None, tmp_path)
    assert found == ["python", os.fspath(tmp_path / "agent.py"), "--fast"]
