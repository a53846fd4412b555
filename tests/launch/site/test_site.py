"""Needs of processes on their nodes, their places on one machine, and the files that another node fetches."""

import asyncio
from pathlib import Path

import pytest
from fakes.models import write_model
from fakes.recipes import make_recipe
from fakes.requests import NoRequests

from asyncrl.algorithms.own_terms import check_terms
from asyncrl.controller.http_service import ControllerService
from asyncrl.journal.starts import ServerChanges
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.servers import server_needs
from asyncrl.launch.site.fetched import fetch_run
from asyncrl.launch.site.site import LocalSite, Need, forwarded, trainer_needs
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
