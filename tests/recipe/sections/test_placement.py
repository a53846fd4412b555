"""What the section `placement` refuses by itself and next to other sections."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"placement": {"trainer": [0], "servers": [0]}},
            "placement.trainer and placement.servers both name GPU 0. Name another .* or let .*colocated",
        ),
        (
            {
                "placement": {"colocated": True, "trainer": [0], "evaluation": [0]},
                "evaluation": {"every_steps": 0, "num_servers": 1},
            },
            "placement.trainer and placement.evaluation both name GPU 0",
        ),
        (
            {"placement": {"colocated": True, "trainer": [0], "servers": [1]}},
            r"placement.servers \[1\] are not all among placement.trainer \[0\].* Name GPUs of the trainer",
        ),
        (
            {"placement": {"colocated": True}, "serving": {"servers": ["http://a:1"]}},
            "names servers that are already running, which share no GPU.* Change serving.servers, or set",
        ),
        (
            {"placement": {"colocated": True}, "serving": {"weight_transport": "distributed"}},
            "serving.weight_transport is distributed: servers sleep .* Change serving.weight_transport",
        ),
        (
            {"placement": {"colocated": True}, "cluster": {"backend": "ray"}},
            "cluster.backend is ray, which gives each process its own GPUs",
        ),
        (
            {"placement": {"colocated": True}, "serving": {"num_servers": 2}},
            "serving.tensor_parallel_size is 2 and trainer.num_processes 1.* Change serving.num_servers",
        ),
        ({"placement": {"trainer": [1, 1]}, "trainer": {"num_processes": 2}}, "names GPU 1 twice"),
        ({"placement": {"device": "cpu", "servers": [0]}}, "but placement.device is cpu. Remove one"),
        ({"placement": {"trainer": [0, 1]}}, r"names 2 GPU\(s\), \[0, 1\], but trainer.num_processes is 1"),
        (
            {"placement": {"servers": [1]}, "serving": {"num_servers": 2}},
            r"but serving.num_servers x serving.tensor_parallel_size is 2. Name 2",
        ),
        ({"placement": {"evaluation": [1]}}, r"evaluation.num_servers x .* is 0"),
        (
            {"placement": {"servers": [1]}, "serving": {"servers": ["http://a:1"]}},
            "names servers that are already running. Remove placement.servers",
        ),
        ({"placement": {"trainer": [-1]}}, "placement.trainer"),
    ],
)
def test_what_cannot_be_placed_is_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_recipe(Path("m"), **sections)


def test_several_ranks_and_servers_may_be_named() -> None:
    recipe = make_recipe(
        Path("m"),
        placement={"trainer": [3, 2], "servers": [0, 1], "evaluation": [4]},
        trainer={"num_processes": 2},
        serving={"num_servers": 2},
        evaluation={"every_steps": 0, "num_servers": 1},
    )
    assert recipe.placement.trainer == [3, 2]
