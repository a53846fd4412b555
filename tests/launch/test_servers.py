"""Which servers a run starts, and that one which was removed has no process any more."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fakes.models import write_model
from fakes.recipes import make_recipe
from fakes.small_disk import refused_writes

from asyncrl.errors import ServerError
from asyncrl.journal.server_changes import ServerChanges
from asyncrl.launch.process import ChildProcess
from asyncrl.launch.servers import LocalServers
from asyncrl.serving.sglang import new_session

NO_CHANGES = ServerChanges()


@contextlib.asynccontextmanager
async def local_servers(
    folder: Path,
    serving: dict[str, Any] | None = None,
    changes: ServerChanges = NO_CHANGES,
    *,
    has_gpu: bool = False,
) -> AsyncIterator[LocalServers]:
    async with new_session() as session:
        yield LocalServers(
            make_recipe(folder, serving=serving or {}),
            model_folder=folder,
            logs=folder,
            session=session,
            has_gpu=has_gpu,
            changes=changes,
        )


@pytest.mark.parametrize("left", [["http://b:1"], []])
async def test_external_servers_that_were_removed_are_not_waited_for_and_no_local_one_takes_their_place(
    tmp_path: Path, left: list[str]
) -> None:
    named = ["http://a:1", "http://b:1"]
    changes = ServerChanges(removed=frozenset(named) - frozenset(left))
    async with local_servers(tmp_path, {"servers": named}, changes) as servers:
        assert servers.urls == left and servers.processes == {}


async def test_with_fixed_ports_the_removed_server_is_left_out_and_the_others_keep_their_names(
    tmp_path: Path,
) -> None:
    changes = ServerChanges(removed_local=frozenset({"http://127.0.0.1:31001"}))
    async with local_servers(tmp_path, {"num_servers": 3, "first_port": 31000}, changes) as servers:
        assert servers.urls == ["http://127.0.0.1:31000", "http://127.0.0.1:31002"]
        assert [process.name for process in servers.processes.values()] == ["server 0", "server 2"]


async def test_on_a_machine_with_gpus_each_server_takes_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "asyncrl.launch.servers.ChildProcess",
        lambda name, arguments, **_: SimpleNamespace(arguments=arguments),
    )
    serving = {"num_servers": 2, "first_gpu": 4, "tensor_parallel_size": 2}
    async with local_servers(tmp_path, serving, has_gpu=True) as servers:
        commands: list[list[str]] = [process.arguments for process in servers.processes.values()]
    assert [command[command.index("--base-gpu-id") + 1] for command in commands] == ["4", "6"]
    for other, has_gpu in ((serving, False), ({**serving, "first_gpu": None}, True)):
        async with local_servers(tmp_path, other, has_gpu=has_gpu) as servers:
            assert all("--base-gpu-id" not in process.arguments for process in servers.processes.values())


async def test_with_free_ports_there_is_one_server_less_for_each_that_was_removed(tmp_path: Path) -> None:
    changes = ServerChanges(removed_local=frozenset({"http://127.0.0.1:1", "http://127.0.0.1:2"}))
    async with local_servers(tmp_path, {"num_servers": 3}, changes) as servers:
        assert [process.name for process in servers.processes.values()] == ["server 0"]


async def test_the_process_of_a_removed_server_ends_and_an_external_one_is_left_alone(tmp_path: Path) -> None:
    async with local_servers(tmp_path) as servers:
        (url,) = servers.urls
        code = "import time; time.sleep(600)"
        servers.processes[url] = ChildProcess(
            "server 0", ["-c", code], environment={}, log_path=tmp_path / "l"
        )
        await servers.processes[url].start()
        pid = servers.processes[url].pid
        await servers.end("http://elsewhere:1")
        assert psutil.pid_exists(pid)
        await servers.end(url)
        assert not psutil.pid_exists(pid)
        # Again, and at the end of the run: nothing is left to end.
        await servers.end(url)
        await servers.stop()


async def test_a_server_is_not_started_again_where_its_log_finds_no_room(tmp_path: Path) -> None:
    async with local_servers(tmp_path) as servers:
        (url,) = servers.urls
        with refused_writes(), pytest.raises(ServerError, match=r"server 0 cannot write its log .*Make room"):
            await servers.restart(url)
        assert servers.processes[url].returncode() is None


async def test_a_server_that_neither_answers_nor_ends_at_its_start_is_started_again_once(
    tmp_path: Path,
) -> None:
    # The first start hangs, like a stopped process; the second answers.
    code = (
        "import http.server, pathlib, sys, time\n"
        "marker = pathlib.Path(sys.argv[1])\n"
        "if not marker.exists():\n"
        "    marker.touch(); time.sleep(600)\n"
        "class Ready(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[2])), Ready).serve_forever()\n"
    )
    async with local_servers(tmp_path, {"start_timeout_seconds": 5.0}) as servers:
        (url,) = servers.urls
        arguments = ["-c", code, str(tmp_path / "was-started"), url.rpartition(":")[2]]
        process = ChildProcess("server 0", arguments, environment={}, log_path=tmp_path / "l")
        servers.processes[url] = process
        try:
            await servers.start()
        finally:
            await servers.stop()


async def test_a_server_is_told_the_type_that_auto_stands_for(tmp_path: Path) -> None:
    # SGLang's own "auto" serves a float32 checkpoint in float16.
    recipe = make_recipe(write_model(tmp_path / "model"), model={"dtype": "auto"})
    async with new_session() as session:
        servers = LocalServers(
            recipe, model_folder=tmp_path / "model", logs=tmp_path, session=session, has_gpu=False
        )
    (process,) = servers.processes.values()
    command = " ".join(process._arguments)
    assert "--dtype float32" in command
