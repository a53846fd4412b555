"""Which servers a run starts, and that one which was removed has no process any more."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.recipes import make_recipe
from fakes.small_disk import refused_writes

from asyncrl.errors import ServerError
from asyncrl.journal.server_changes import ServerChanges
from asyncrl.launch.process import ChildProcess
from asyncrl.launch.servers import LocalServers
from asyncrl.serving.sglang import new_session


def with_servers(
    folder: Path,
    serving: dict[str, Any],
    changes: ServerChanges,
    scenario: Callable[[LocalServers], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with new_session() as session:
            servers = LocalServers(
                make_recipe(folder, serving=serving),
                model_folder=folder,
                logs=folder,
                session=session,
                has_gpu=False,
                changes=changes,
            )
            await scenario(servers)

    asyncio.run(main())


def test_external_servers_that_were_removed_are_not_waited_for_and_no_local_one_takes_their_place(
    tmp_path: Path,
) -> None:
    async def one(servers: LocalServers) -> None:
        assert servers.urls == ["http://b:1"] and servers.processes == {}

    async def none(servers: LocalServers) -> None:
        assert servers.urls == [] and servers.processes == {}

    serving = {"servers": ["http://a:1", "http://b:1"]}
    with_servers(tmp_path, serving, ServerChanges(removed=frozenset({"http://a:1"})), one)
    with_servers(tmp_path, serving, ServerChanges(removed=frozenset(serving["servers"])), none)


def test_with_fixed_ports_the_removed_server_is_left_out_and_the_others_keep_their_names(
    tmp_path: Path,
) -> None:
    async def scenario(servers: LocalServers) -> None:
        assert servers.urls == ["http://127.0.0.1:31000", "http://127.0.0.1:31002"]
        assert [process.name for process in servers.processes.values()] == ["server 0", "server 2"]

    changes = ServerChanges(removed_local=frozenset({"http://127.0.0.1:31001"}))
    with_servers(tmp_path, {"num_servers": 3, "first_port": 31000}, changes, scenario)


def test_with_free_ports_there_is_one_server_less_for_each_that_was_removed(tmp_path: Path) -> None:
    async def scenario(servers: LocalServers) -> None:
        assert [process.name for process in servers.processes.values()] == ["server 0"]

    changes = ServerChanges(removed_local=frozenset({"http://127.0.0.1:1", "http://127.0.0.1:2"}))
    with_servers(tmp_path, {"num_servers": 3}, changes, scenario)


def test_the_process_of_a_removed_server_ends_and_an_external_one_is_left_alone(tmp_path: Path) -> None:
    async def scenario(servers: LocalServers) -> None:
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

    with_servers(tmp_path, {}, ServerChanges(), scenario)


def test_a_server_is_not_started_again_where_its_log_finds_no_room(tmp_path: Path) -> None:
    async def scenario(servers: LocalServers) -> None:
        (url,) = servers.urls
        with refused_writes(), pytest.raises(ServerError, match=r"server 0 cannot write its log .*Make room"):
            await servers.restart(url)
        assert servers.processes[url].returncode() is None

    with_servers(tmp_path, {}, ServerChanges(), scenario)


def test_a_server_that_neither_answers_nor_ends_at_its_start_is_started_again_once(tmp_path: Path) -> None:
    # The first start sleeps for ever, as one that was stopped; the second answers.
    code = (
        "import http.server, pathlib, sys, time\n"
        "marker = pathlib.Path(sys.argv[1])\n"
        "if not marker.exists():\n"
        "    marker.touch(); time.sleep(600)\n"
        "class Ready(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[2])), Ready).serve_forever()\n"
    )

    async def scenario(servers: LocalServers) -> None:
        (url,) = servers.urls
        arguments = ["-c", code, str(tmp_path / "was-started"), url.rpartition(":")[2]]
        process = ChildProcess("server 0", arguments, environment={}, log_path=tmp_path / "l")
        servers.processes[url] = process
        try:
            await servers.start()
        finally:
            await servers.stop()

    with_servers(tmp_path, {"start_timeout_seconds": 5.0}, ServerChanges(), scenario)
