"""Processes on the nodes of a real Ray cluster, three of them on this machine: same logs, exit codes and last
words as of local ones, and another node where one is lost."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: make setup RAY=1")

from fakes.models import write_model  # noqa: E402
from fakes.processes import descendants, wait_for_end  # noqa: E402
from fakes.ray_nodes import ray_nodes  # noqa: E402
from fakes.recipes import make_recipe  # noqa: E402
from fakes.requests import NoRequests  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from asyncrl.controller.http_service import ControllerService  # noqa: E402
from asyncrl.errors import InputError, ServerError  # noqa: E402
from asyncrl.launch.site.ray_cluster import RayCluster, open_cluster  # noqa: E402
from asyncrl.launch.site.site import ControllerDisk, Need  # noqa: E402
from asyncrl.recipe.file import dump_recipe, load_recipe  # noqa: E402
from asyncrl.wire.access import Keys  # noqa: E402
from asyncrl.wire.fetch import fetch_folder  # noqa: E402
from asyncrl.wire.file_service import FileRoutes  # noqa: E402

# Ray leaves sockets and files to the end of the process.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ray_nodes(1, 1, caches=tmp_path_factory.mktemp("caches")) as cluster:
        yield cluster


@pytest.fixture
async def site(nodes: Cluster, tmp_path: Path) -> AsyncIterator[RayCluster]:
    recipe = make_recipe(
        tmp_path, cluster={"backend": "ray", "address": nodes.address}, serving={"start_timeout_seconds": 30}
    )
    async with open_cluster(recipe) as site:
        yield site


async def wait_for_output(path: Path) -> None:
    async with asyncio.timeout(300):
        while not (path.exists() and path.read_text().strip()):
            await asyncio.sleep(0.02)


async def test_a_cluster_of_its_own_ends_with_the_run(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, cluster={"backend": "ray", "address": "local"})
    before = descendants()
    async with open_cluster(recipe) as site:
        await site.place([Need("server 0", 0, 1)])
        process = site.process("server 0", ["-c", SLEEP], environment={}, log_path=tmp_path / "log")
        await process.start()
        await wait_for_output(tmp_path / "log")
        # Other tests of this process may keep helpers.
        family = descendants() - before
        assert any("raylet" in child.name() for child in family)
    assert not wait_for_end(family)


async def test_a_process_has_its_environment_its_log_and_its_exit_code(
    site: RayCluster, tmp_path: Path
) -> None:
    places = await site.place([Need("server 0", 1, 1)])
    place = places["server 0"]
    assert place.host == place.bind_address and 0 < place.port < 2**16 and place.is_alone
    code = "import os; print(os.environ['A'], os.environ['CUDA_VISIBLE_DEVICES']); print('last'); exit(7)"
    process = site.process("server 0", ["-c", code], environment={"A": "b"}, log_path=tmp_path / "log")
    assert not process.is_running() and process.returncode() is None
    await process.start()
    assert await process.wait() == 7 == process.returncode()
    assert (tmp_path / "log").read_text() == "b 0\nlast\n"
    assert process.last_lines(1) == "last" and not process.why_lost
    # Again, in the same place: its log goes on.
    await process.start()
    assert await process.wait() == 7
    assert (tmp_path / "log").read_text() == "b 0\nlast\n" * 2


async def test_a_process_ends_when_it_is_told_to(site: RayCluster, tmp_path: Path) -> None:
    await site.place([Need("a", 0, 1), Need("b", 0, 1)])
    a, b = (
        site.process(name, ["-c", SLEEP], environment={}, log_path=tmp_path / name) for name in ("a", "b")
    )
    for process in (a, b):
        await process.start()
        await wait_for_output(process.log_path)
    a.kill()
    assert await a.wait() == -signal.SIGKILL and b.is_running()
    await b.stop(grace_seconds=60)
    assert b.returncode() == -signal.SIGTERM and b.last_lines() == "up"


async def test_what_has_no_room_says_what_it_waits_for(
    site: RayCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_seconds", 1.0)
    monkeypatch.setattr("asyncrl.launch.site.ray_cluster.SAY_SECONDS", 0.5)
    with caplog.at_level(logging.WARNING), pytest.raises(InputError) as refused:
        await site.place([Need("server 0", 2, 1)])
    (first, *_) = [record.getMessage() for record in caplog.records]
    assert first.startswith(
        "server 0 waits for a node with 2 GPU(s) and 1 CPU(s) free. The cluster has 3 node"
    )
    assert "with 0 GPU(s) and 4 CPU(s), 1 GPU(s) and 4 CPU(s), 1 GPU(s) and 4 CPU(s)" in first
    assert "It waited 1 s (serving.start_timeout_seconds). Add nodes, or ask for less" in str(refused.value)


async def test_a_node_without_our_disk_fetches_what_its_process_needs(nodes: Cluster, tmp_path: Path) -> None:
    model, run = write_model(tmp_path / "model"), tmp_path / "run"
    (run / "checkpoints" / "step-4").mkdir(parents=True)
    (run / "checkpoints" / "step-4" / "rank-0").write_text("weights")
    recipe = make_recipe(
        model,
        cluster={"backend": "ray", "address": nodes.address, "shared_disk": False},
        serving={"start_timeout_seconds": 30},
    )
    (run / "recipe.yaml").write_text(dump_recipe(recipe))
    service = ControllerService(NoRequests(), files=FileRoutes(model, run), keys=Keys("token"))
    show = "import os, sys; print(*sys.argv[1:]); print(*sorted(os.listdir(sys.argv[1])))"
    async with open_cluster(recipe) as site:
        await service.start()
        site.hand_out(ControllerDisk(service.url, model, run, Keys("token")))
        await site.place([Need("trainer 0", 1, 1, group="trainer")])
        command, log_path = ["-c", show, str(run), str(model)], tmp_path / "log"
        process = site.process("trainer 0", command, environment={}, log_path=log_path)
        await process.start()
        assert await process.wait() == 0
        arguments, names = process.last_lines().splitlines()
        folder, model_there, option, url = arguments.split()
        assert names == "checkpoints checkpoints.lock recipe.yaml" and option == "--files-url"
        there = load_recipe(Path(folder) / "recipe.yaml")
        assert there.run_folder == folder != str(run)
        assert there.model.path == model_there != str(model)
        # From there the controller fetches what the trainer writes.
        fetched = await asyncio.to_thread(
            fetch_folder, f"{url}/files/checkpoints/step-4", tmp_path / "back", token="token"
        )
        assert (fetched / "rank-0").read_text() == "weights"
        site.hand_out(ControllerDisk(service.url, model, run, Keys("wrong")))
        other = site.process("trainer 0", command, environment={}, log_path=log_path)
        with pytest.raises(ServerError, match=r"trainer 0: nothing was fetched from .* answered 401"):
            await other.start()
        await service.close()
    # Nothing but the model stays on the node.
    assert not Path(folder).exists() and (Path(model_there) / "config.json").is_file()


async def test_where_no_cluster_answers_the_way_out_is_named(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, cluster={"backend": "ray", "address": "127.0.0.1:9"})
    with pytest.raises(InputError, match=r"cluster.address is 127.0.0.1:9, but .* \(ray start --head\)"):
        async with open_cluster(recipe):
            pass
