"""Needs of processes on their nodes, their places on one machine, and the files that another node fetches."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fakes.models import write_model
from fakes.processes import wait_for_end
from fakes.recipes import make_recipe
from fakes.requests import NoRequests

from asyncrl.algorithms.own_terms import check_terms
from asyncrl.controller.http_service import ControllerService
from asyncrl.journal.starts import ServerChanges
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.servers import server_needs
from asyncrl.launch.site.site import ChildProcess, LocalSite, Need, fetch_run, forwarded, trainer_needs
from asyncrl.recipe.file import dump_recipe, load_recipe, object_files
from asyncrl.recipe.sections.serving import Cluster
from asyncrl.run.checkpoints import saved_versions
from asyncrl.system.machine import outward_address
from asyncrl.wire.access import Keys
from asyncrl.wire.file_service import FileRoutes

ON_CPU = GpuMap("no NVIDIA GPU is here")


async def test_on_one_machine_each_need_has_a_port_of_its_own() -> None:
    site = LocalSite(Cluster(), ON_CPU)
    places = await site.place([Need("a", 1, 1), Need("b", 8, 64)])
    assert {place.host for place in places.values()} == {"127.0.0.1"} == {site.address}
    assert places["a"].port != places["b"].port and not places["a"].is_alone


@pytest.mark.parametrize(
    ("cluster", "bind", "host"),
    [
        (Cluster(bind_address="0.0.0.0"), "0.0.0.0", outward_address()),
        (Cluster(bind_address="10.0.0.7"), "10.0.0.7", "10.0.0.7"),
        (Cluster(bind_address="0.0.0.0", advertised_address="node-7"), "0.0.0.0", "node-7"),
    ],
)
async def test_the_advertised_address_is_the_one_that_others_reach(
    cluster: Cluster, bind: str, host: str
) -> None:
    (place,) = (await LocalSite(cluster, ON_CPU).place([Need("a", 1, 1)])).values()
    assert (place.bind_address, place.host) == (bind, host)


def test_a_server_needs_its_gpus_on_one_node_and_ranks_belong_together(tmp_path: Path) -> None:
    recipe = make_recipe(
        tmp_path,
        serving={"num_servers": 3, "tensor_parallel_size": 4, "threads_per_server": 2},
        trainer={"num_processes": 2, "threads_per_process": 5},
    )
    assert trainer_needs(recipe) == [Need(f"trainer {n}", 1, 5, group="trainer") for n in range(2)]
    removed = ServerChanges(removed_local=frozenset({"http://10.0.0.1:5000"}))
    needs = server_needs(recipe, removed, num_evaluation=1)
    assert needs == [Need(name, 4, 2) for name in ("server 0", "server 1", "evaluation server 0")]
    external = make_recipe(tmp_path, serving={"servers": ["http://a:1"]})
    assert server_needs(external) == []


def test_only_variables_that_are_set_are_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    assert forwarded(["MY_KEY", "NOT_SET_ANYWHERE", None]) == {"MY_KEY": "secret"}


async def test_trainer_ranks_of_one_machine_meet_without_leaving_it() -> None:
    site = LocalSite(Cluster(bind_address="0.0.0.0", advertised_address="node-7"), ON_CPU)
    places = await site.place([Need("trainer 0", 1, 1, group="trainer"), Need("server 0", 1, 1)])
    assert [place.host for place in places.values()] == ["127.0.0.1", "node-7"]


TERM = """
def doubled(inputs, algorithm):
    return -2 * inputs.advantages * inputs.current
"""


async def test_a_trainer_elsewhere_finds_model_terms_and_checkpoints_on_its_own_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "node"))
    model, run, term = write_model(tmp_path / "model"), tmp_path / "run", tmp_path / "mine.py"
    term.write_text(TERM)
    (run / "checkpoints" / "step-8").mkdir(parents=True)
    (run / "checkpoints" / "step-8" / "rank-0").write_text("weights")
    recipe = make_recipe(
        model, algorithm={"surrogate": f"{term}:doubled"}, cluster={"backend": "ray", "shared_disk": False}
    )
    (run / "recipe.yaml").write_text(dump_recipe(recipe))
    # What an earlier trainer left on this node and never committed is not continued.
    left = tmp_path / "node" / "asyncrl" / "runs" / "mine" / "checkpoints" / "step-12"
    left.mkdir(parents=True)
    (left / "rank-0").write_text("weights that were not committed")
    terms = object_files(recipe.algorithm.model_dump())
    service = ControllerService(NoRequests(), files=FileRoutes(model, run, terms), keys=Keys("token"))
    await service.start()
    try:
        folder = await asyncio.to_thread(fetch_run, service.url, "mine", token="token")
    finally:
        await service.close()
    there = load_recipe(folder / "recipe.yaml")
    text = (folder / "recipe.yaml").read_text()
    for elsewhere in (model, run, term):
        assert f"{elsewhere}\n" not in text and f"{elsewhere}:" not in text
    assert (Path(there.model.path) / "config.json").read_bytes() == (model / "config.json").read_bytes()
    assert saved_versions(folder / "checkpoints") == [8]
    term.unlink()
    check_terms(there.algorithm)


SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
PARENT = (
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; "
    "time.sleep(600)']); "
    "print(p.pid, flush=True); time.sleep(600)"
)


def child(folder: Path, code: str) -> ChildProcess:
    return ChildProcess("child", ["-c", code], environment={}, log_path=folder / "log")


async def wait_for_output(path: Path, *, seconds: float = 300.0) -> str:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline, "the child said nothing"
        await asyncio.sleep(0.01)
    return path.read_text().strip()


async def test_a_child_that_ends_leaves_its_code_and_its_last_lines(tmp_path: Path) -> None:
    process = child(tmp_path, "print('first'); print('last'); raise SystemExit(7)")
    await process.start()
    assert await process.wait() == 7
    assert process.last_lines(1) == "last"


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    process = child(tmp_path, STUBBORN)
    await process.start()
    await wait_for_output(tmp_path / "log")
    await process.stop(grace_seconds=0.2)
    assert process.returncode() == -signal.SIGKILL


async def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    process = child(tmp_path, PARENT)
    await process.start()
    grandchild = psutil.Process(int(await wait_for_output(tmp_path / "log")))
    await process.stop(grace_seconds=0.2)
    assert not wait_for_end([grandchild])


def test_a_child_does_not_outlive_a_launcher_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from asyncrl.launch.site.site import ChildProcess\n"
        "async def main():\n"
        f"    p = ChildProcess('c', ['-c', {SLEEP!r}], environment={{}}, "
        f"log_path=Path({str(tmp_path / 'log')!r}))\n"
        "    await p.start()\n    print(p.pid, flush=True)\n    await p.wait()\n"
        "asyncio.run(main())\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    launched = psutil.Process(int(launcher.stdout.readline()))
    asyncio.run(wait_for_output(tmp_path / "log"))
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()
    assert not wait_for_end([launched])
