"""Which servers a run starts, and that one which was removed has no process any more."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from fakes.engine import FakeEngine
from fakes.gpus import whole_gpus
from fakes.models import write_model
from fakes.recipes import make_recipe
from fakes.small_disk import refused_writes
from fakes.teacher_server import FakeTeacher

from asyncrl.errors import ServerError
from asyncrl.journal.starts import ServerChanges
from asyncrl.launch.placement import GpuMap, assign
from asyncrl.launch.servers import LocalServers, server_needs
from asyncrl.launch.site.site import ChildProcess, LocalSite, Need, Place, Site
from asyncrl.model.side_models import TEACHER, SideModel
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe import Recipe
from asyncrl.recipe.sections.serving import Cluster
from asyncrl.serving.sglang.http import new_session
from asyncrl.system.network import free_ports
from asyncrl.wire.access import Keys

NO_CHANGES = ServerChanges()
ON_CPU = GpuMap("a test")


@contextlib.asynccontextmanager
async def servers_of(
    recipe: Recipe,
    folder: Path,
    side_models: dict[str, SideModel] | None = None,
    *,
    changes: ServerChanges = NO_CHANGES,
    gpus: GpuMap = ON_CPU,
    site: Site | None = None,
    keys: Keys | None = None,
) -> AsyncIterator[LocalServers]:
    """Their processes have ended when the block ends."""
    site, sides = site or LocalSite(recipe.cluster, gpus), side_models or {}
    async with new_session(keys) as session:
        servers = LocalServers(
            recipe,
            model_folder=folder,
            logs=folder,
            session=session,
            site=site,
            places=await site.place(server_needs(recipe, changes, side_models=sides)),
            side_models=sides,
            changes=changes,
            keys=keys,
        )
        try:
            yield servers
        finally:
            await servers.stop()


def local_servers(
    folder: Path,
    serving: dict[str, Any] | None = None,
    changes: ServerChanges = NO_CHANGES,
    *,
    dtype: str = "float32",
    rollout: dict[str, Any] | None = None,
    **others: Any,
) -> contextlib.AbstractAsyncContextManager[LocalServers]:
    recipe = make_recipe(folder, serving=serving or {}, model={"dtype": dtype}, rollout=rollout or {})
    return servers_of(recipe, folder, changes=changes, **others)


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


async def test_a_removed_server_leaves_its_gpu_unused_and_the_others_keep_theirs(tmp_path: Path) -> None:
    changes = ServerChanges(removed_local=frozenset({"http://127.0.0.1:31001"}))
    serving = {"num_servers": 3, "first_port": 31000}
    gpus = assign(make_recipe(tmp_path, serving=serving), whole_gpus(4))
    async with local_servers(tmp_path, serving, changes, gpus=gpus) as servers:
        processes: Any = servers.processes.values()
        found = {each.name: each._environment["CUDA_VISIBLE_DEVICES"] for each in processes}
    assert found == {"server 0": "1", "server 2": "3"}


async def test_a_server_is_told_which_tokens_are_never_sampled(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 9}')
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 1, "c": 5}}}')
    async with local_servers(tmp_path) as servers:
        (process,) = servers.processes.values()
        assert isinstance(process, ChildProcess)
        assert process._environment["ASYNCRL_UNSAMPLED"] == "2-4,6-8"


async def test_an_external_server_that_samples_other_tokens_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 3}')
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 1}}}')
    async with FakeEngine() as engine, local_servers(tmp_path, {"servers": [engine.url]}) as servers:
        with pytest.raises(ServerError, match="never samples the tokens 'none', the run never samples '2'"):
            await servers.start()
        engine.hooks["unsampled"] = "2"
        await servers.start()


async def test_an_external_server_that_does_not_tell_enough_kept_tokens_is_refused_at_once(
    tmp_path: Path,
) -> None:
    rollout = {"top_p": 0.9, "top_k": 64}
    async with (
        FakeEngine() as engine,
        local_servers(tmp_path, {"servers": [engine.url]}, rollout=rollout) as servers,
    ):
        with pytest.raises(ServerError, match=r"up to none, but rollout.top_k is 64"):
            await servers.start()
        engine.hooks["most_kept"] = 63
        with pytest.raises(
            ServerError, match=r"up to 63, but .*Start it with .*--sampling-mask-max-tokens 64"
        ):
            await servers.start()
        engine.hooks["most_kept"] = 64
        await servers.start()


async def test_with_free_ports_there_is_one_server_less_for_each_that_was_removed(tmp_path: Path) -> None:
    changes = ServerChanges(removed_local=frozenset({"http://127.0.0.1:1", "http://127.0.0.1:2"}))
    async with local_servers(tmp_path, {"num_servers": 3}, changes) as servers:
        assert [process.name for process in servers.processes.values()] == ["server 0"]


async def test_the_process_of_a_removed_server_ends_and_an_external_one_is_left_alone(tmp_path: Path) -> None:
    async with local_servers(tmp_path) as servers:
        (url,) = servers.urls
        code = "import time; time.sleep(600)"
        process = ChildProcess("server 0", ["-c", code], environment={}, log_path=tmp_path / "l")
        servers.processes[url] = process
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
        with (
            refused_writes(),
            pytest.raises(ServerError, match=r"server 0 cannot write its log .*Free up disk space"),
        ):
            await servers.restart(url)
        assert servers.processes[url].returncode() is None


async def test_a_server_that_neither_answers_nor_ends_at_its_start_is_started_again_once(
    tmp_path: Path,
) -> None:
    # The first start hangs, like a stopped process; the second answers.
    code = (
        "import http.server, pathlib, sys, time\n"
        "if not pathlib.Path(sys.argv[1]).exists(): time.sleep(600)\n"
        "class Ready(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[2])), Ready).serve_forever()\n"
    )
    async with local_servers(tmp_path, {"start_timeout_seconds": 1.0}) as servers:
        (url,) = servers.urls
        second = tmp_path / "second"
        arguments = ["-c", code, str(second), url.rpartition(":")[2]]
        process = ChildProcess("server 0", arguments, environment={}, log_path=tmp_path / "l")
        servers.processes[url] = process
        restarted: list[str] = []

        def restart(url: str) -> None:
            restarted.append(url)
            second.touch()
            # The second start may take as long as the machine needs.
            servers._recipe = make_recipe(tmp_path, serving={"start_timeout_seconds": 100.0})

        await servers.start(restart)
        assert restarted == [url]


@pytest.mark.parametrize(("said", "num_restarts"), [("ValueError: no such backend", 1), ("loading", 3)])
async def test_a_server_that_kills_itself_over_an_exception_is_started_again_once(
    said: str, num_restarts: int, tmp_path: Path
) -> None:
    code = f"import os; print('Traceback ...\\n{said}', flush=True); os.kill(os.getpid(), 9)"
    async with local_servers(tmp_path) as servers:
        (url,) = servers.urls
        process = ChildProcess("server 0", ["-c", code], environment={}, log_path=tmp_path / "l")
        servers.processes[url] = process
        restarted: list[str] = []
        with pytest.raises(ServerError, match=f"exit code -9(?s:.*){said}"):
            await servers.start(restarted.append)
        assert restarted == [url] * num_restarts


async def test_a_server_is_told_the_type_that_auto_stands_for(tmp_path: Path) -> None:
    # SGLang's own "auto" serves a float32 checkpoint in float16.
    async with local_servers(write_model(tmp_path / "model"), dtype="auto") as servers:
        process: Any = servers.processes[servers.urls[0]]
        assert "--dtype float32" in " ".join(process._arguments)


class OtherNodes:
    """A site whose first node is lost with what runs there."""

    def __init__(self) -> None:
        self.address, self.ports = "127.0.0.1", iter(free_ports(2))
        self.local = LocalSite(Cluster(), ON_CPU)

    async def place(self, needs: Sequence[Need]) -> dict[str, Place]:
        return {
            need.name: Place("127.0.0.1", "localhost", next(self.ports), False, is_alone=True)
            for need in needs
        }

    def hand_out_model(self, folder: Path, url: str, token: str) -> None:
        raise AssertionError("every node sees the disk")

    def process(self, name: str, arguments: Sequence[str], **named: Any) -> ChildProcess:
        port = arguments[arguments.index("--port") + 1]
        return self.local.process(name, ["-c", READY, port], **named)


READY = (
    "import http.server, sys\n"
    "class Ready(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self): self.send_response(200 if 'ready' in self.path else 401); self.end_headers()\n"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Ready).serve_forever()\n"
)


async def test_a_server_whose_node_is_lost_comes_up_at_another_url_and_is_shown_the_token_there(
    tmp_path: Path,
) -> None:
    keys = Keys("token")
    async with local_servers(tmp_path, site=OtherNodes(), keys=keys) as servers:
        await servers.start()
        (before,) = servers.urls
        servers.processes[before].kill()
        await servers.processes[before].wait()
        servers.processes[before].why_lost = "its node was lost"
        now = await servers.restart(before)
        assert now != before and servers.urls == [now] and list(servers.processes) == [now]
        assert keys.is_own(now) and now.startswith("http://localhost:")
        # Whoever was told of the old URL may still ask for its end.
        await servers.end(before)


async def test_a_server_that_answers_without_the_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "READY", READY.replace("401", "200"))
    async with local_servers(tmp_path, site=OtherNodes(), keys=Keys("token")) as servers:
        with pytest.raises(ServerError, match="server 0 answers without the run's token: SGLang"):
            await servers.start()


class PausedEngine(FakeEngine):
    """Not ready until it is told to generate again, as SGLang after a publish that broke off."""

    async def _flow(self, request: web.Request) -> web.Response:
        self.is_ready = self.is_ready or request.path == "/continue_generation"
        return await super()._flow(request)


@pytest.mark.parametrize("is_first", [True, False], ids=["a run starts", "it leaves in a run"])
async def test_an_external_server_that_a_broken_publish_left_paused_comes_back(
    is_first: bool, tmp_path: Path
) -> None:
    async with PausedEngine() as engine:
        engine.is_ready = False
        named = {"servers": [engine.url], "start_timeout_seconds": 10.0}
        async with local_servers(tmp_path, named) as servers:
            await (servers.start() if is_first else servers.restart(engine.url))
        assert engine.is_ready


def taught(
    folder: Path, url: str | None = None, top_k: int | None = None, **sections: Any
) -> tuple[Recipe, SideModel]:
    teacher = {"path": str(folder / "teacher"), "url": url, "tensor_parallel_size": 2, "top_k": top_k}
    recipe = make_recipe(folder, teacher=teacher, **sections)
    own = recipe.of_teacher()
    found = SideModel(own, folder / "teacher", None, 64, 9, "bfloat16", Unsampled((7, 8)))
    return recipe, found


async def test_the_teacher_is_a_server_of_its_own_with_its_model_its_gpus_and_the_tokens_it_never_samples(
    tmp_path: Path,
) -> None:
    recipe, teacher = taught(tmp_path)
    gpus = assign(recipe, whole_gpus(4))
    async with servers_of(recipe, tmp_path, {TEACHER: teacher}, gpus=gpus) as servers:
        url = servers.side_urls[TEACHER]
    assert url not in servers.urls and len(servers.urls) == 1
    process: Any = servers.processes[url]
    assert process.name == "teacher" and process.log_path == tmp_path / "teacher.log"
    assert process._environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert process._environment["ASYNCRL_UNSAMPLED"] == "7-8"
    words = " ".join(process._arguments)
    assert f"--model-path {tmp_path}/teacher --dtype bfloat16" in words
    assert "--tensor-parallel-size 2" in words


async def test_an_opponent_is_a_server_of_its_own_that_says_one_version_and_moves_with_its_node(
    tmp_path: Path,
) -> None:
    recipe = make_recipe(
        tmp_path, agent={"command": ["true"], "opponents": {"rival": str(tmp_path / "rival")}}
    )
    own = recipe.of_opponent("rival")
    model = SideModel(own, tmp_path / "rival", None, 64, 9, "float32", Unsampled((7, 8)))
    gpus = assign(recipe, whole_gpus(3))
    async with servers_of(recipe, tmp_path, {"opponent rival": model}, gpus=gpus) as servers:
        (url,) = servers.opponent_urls().values()
    process: Any = servers.processes[url]
    assert url not in servers.urls and process.log_path == tmp_path / "opponent-rival.log"
    assert process._environment["CUDA_VISIBLE_DEVICES"] == "2"
    words = " ".join(process._arguments)
    assert f"--model-path {tmp_path}/rival --dtype float32" in words and "--weight-version 0" in words


@pytest.mark.parametrize("temperature", [0.7, 1.0])
async def test_an_external_teacher_without_top_k_is_refused_and_one_without_the_plugin_unless_at_1(
    tmp_path: Path, temperature: float
) -> None:
    async with FakeTeacher() as server:
        recipe, teacher = taught(tmp_path, server.url, 3, rollout={"temperature": temperature})
        recipe = recipe.model_copy(update={"serving": recipe.serving.model_copy(update={"num_servers": 0})})
        async with servers_of(recipe, tmp_path, {TEACHER: teacher}) as servers:
            assert servers.side_urls[TEACHER] == server.url and not servers.processes
            await servers.start()
            assert server.bodies[0]["input_ids"] == [0, 0]
            server.num_top = 0
            with pytest.raises(ServerError, match=r"which 3 tokens it finds likeliest \(teacher.top_k\): "):
                await servers.start()
            server.num_top, server.hooks = None, None
            if temperature == 1.0:
                return await servers.start()
            with pytest.raises(ServerError, match=r"has no asyncrl plugin: .* rollout.temperature is 0.7"):
                await servers.start()
