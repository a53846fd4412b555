"""Addresses that cannot work are refused before anything starts."""

import socket
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape

from asyncrl.errors import InputError
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.preflight import check_machine


def check(folder: Path, **cluster: Any) -> None:
    recipe = make_recipe(folder, cluster=cluster).model_copy(update={"run_folder": str(folder / "run")})
    check_machine(recipe, tiny_shape(), GpuMap("a test"))


def test_a_machine_without_a_way_to_others_is_asked_for_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.recipe.cluster.outward_address", lambda: "127.0.0.1")
    with pytest.raises(InputError, match=r"no way to other networks.* Set cluster.advertised_address"):
        check(tmp_path, bind_address="0.0.0.0")
    check(tmp_path, bind_address="0.0.0.0", advertised_address="10.0.0.7")
    check(tmp_path)


def test_a_port_of_the_controller_that_is_taken_is_named_with_its_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"port {port} \(cluster.port\) is taken: .*Set another one"):
            check(tmp_path, port=port)
    check(tmp_path, port=port)
