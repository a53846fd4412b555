"""What the processes of a recipe need of their nodes, and where they are on one machine."""

from pathlib import Path

import pytest
from fakes.recipes import make_recipe

from asyncrl.journal.starts import ServerChanges
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.servers import server_needs
from asyncrl.launch.site.site import LocalSite, Need, forwarded, trainer_needs
from asyncrl.recipe.sections.cluster import Cluster
from asyncrl.system.machine import outward_address

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
