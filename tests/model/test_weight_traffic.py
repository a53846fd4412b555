import dataclasses
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe
from fakes.shapes import seven_b_shape, tiny_shape

from asyncrl.model.shape import ModelShape
from asyncrl.model.weight_traffic import disk_notes, kept_version_bytes, version_lines
from asyncrl.model.weights import num_parameters

SEVEN_B = seven_b_shape()


def notes(shape: ModelShape = SEVEN_B, **sections: Any) -> list[str]:
    sections["serving"] = {"num_servers": 100} | sections.get("serving", {})
    sections["model"] = {"path": "model", "dtype": "bfloat16"} | sections.get("model", {})
    return disk_notes(make_recipe(Path("model"), **sections), shape)


def test_a_hundred_servers_of_seven_billion_parameters_read_a_terabyte_and_a_half() -> None:
    assert num_parameters(SEVEN_B) == pytest.approx(7.6e9, rel=0.01)
    (note,) = notes()
    assert note.startswith("100 servers read 15.2 GB each, 1,523 GB in all, for every version (")
    assert "Set serving.weight_transport to distributed" in note


@pytest.mark.parametrize(
    ("serving", "dtype", "shared_disk", "is_delta"),
    [
        ({}, "bfloat16", False, True),
        ({}, "bfloat16", True, False),
        ({}, "float32", False, False),
        ({"weight_transport": "distributed"}, "bfloat16", False, False),
        ({"weight_encoding": "delta"}, "float32", True, True),
        ({"weight_encoding": "full"}, "bfloat16", False, False),
    ],
)
def test_deltas_are_sent_where_weights_come_over_a_network_and_where_a_recipe_asks(
    serving: dict[str, Any], dtype: str, shared_disk: bool, is_delta: bool
) -> None:
    model, cluster = {"path": "model", "dtype": dtype}, {"shared_disk": shared_disk}
    recipe = make_recipe(Path("model"), serving=serving, model=model, cluster=cluster)
    kept = num_parameters(SEVEN_B) * (4 if dtype == "float32" else 2)
    assert kept_version_bytes(recipe, SEVEN_B) == (kept if is_delta else 0)
    (line,) = version_lines(recipe, SEVEN_B)
    assert ("or 0.30 GB where 1% of the words change" in line) is is_delta


def test_in_float32_they_read_twice_as_much() -> None:
    (note,) = notes(model={"dtype": "float32"})
    assert "30.5 GB each, 3,046 GB in all" in note


@pytest.mark.parametrize(
    "changes",
    [
        {"serving": {"num_servers": 6}},
        {"model": {"lora": {"rank": 8}}},
        {"serving": {"num_servers": 8}, "trainer": {"num_processes": 8}, "placement": {"colocated": True}},
        {"serving": {"weight_transport": "distributed"}},
        {"shape": tiny_shape()},
        {"shape": dataclasses.replace(SEVEN_B, num_layers=700), "serving": {"num_servers": 1}},
    ],
)
def test_nothing_is_said_where_a_broadcast_gains_little(changes: dict[str, Any]) -> None:
    assert notes(**changes) == []
