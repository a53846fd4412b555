"""A Ray cluster that asks for a token, on a host of its own: who shows none is told what to set."""

import sys
from pathlib import Path

import pytest
from fakes.hosts import make_hosts

pytest.importorskip("ray", reason="Ray is not installed: make setup RAY=1")

pytestmark = pytest.mark.exhaustive
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789" * 4}
RAY = str(Path(sys.executable).with_name("ray"))
START = "--head --port=6379 --num-cpus=2 --object-store-memory=80000000 --disable-usage-stats"
OPEN = """
import asyncio, sys
from pathlib import Path
from asyncrl.errors import InputError
from asyncrl.launch.ray_cluster import open_cluster
from asyncrl.recipe.file import parse_recipe

async def show(address):
    cluster = {"backend": "ray", "address": address}
    raw = {"name": "test", "model": {"path": "/m"}, "data": {"train": "/d"}, "cluster": cluster}
    raw["evaluation"] = {"every_steps": 0}
    async with open_cluster(parse_recipe(raw, source="test")) as site:
        return site.address

try:
    print(asyncio.run(show(sys.argv[1])))
except InputError as error:
    print(error)
"""


def test_a_cluster_with_a_token_opens_to_who_shows_it_and_tells_others_what_to_set(tmp_path: Path) -> None:
    with make_hosts(1, tmp_path) as hosts:
        (host,) = hosts.all
        start = host.start(
            RAY, "start", *START.split(), f"--node-ip-address={host.address}", log=tmp_path / "log", **TOKEN
        )
        assert start.wait(120) == 0, (tmp_path / "log").read_text()
        address = f"{host.address}:6379"
        for name, shown in (("with", TOKEN), ("without", {})):
            script = host.start(sys.executable, "-c", OPEN, address, log=tmp_path / name, **shown)
            assert script.wait(120) == 0, (tmp_path / name).read_text()
        assert (tmp_path / "with").read_text().splitlines()[-1] == host.address
        said = (tmp_path / "without").read_text()
        assert f"cluster.address is {address}, a cluster that asks for a token" in said
        assert "Set RAY_AUTH_MODE to token, and RAY_AUTH_TOKEN" in said
