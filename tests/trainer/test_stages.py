"""Two pipeline stages publish from memory: each broadcasts its own tensors to a group of its own."""

import json
import os
from pathlib import Path

import pytest
import torch
from fakes.launch_trainer import finish_trainer
from fakes.models import reference_model, write_model
from fakes.receivers import running_receivers, set_fault, state_of
from fakes.template import Template

from asyncrl.serving.publication import read_publication
from asyncrl.system.network import free_ports
from asyncrl.trainer.network.export import read_weights
from asyncrl.trainer.publishing.host_weights import digests_of


@pytest.mark.parametrize("fault", [pytest.param({}, marks=pytest.mark.exhaustive), {"dies_at": 1}])
def test_every_server_gets_the_tensors_of_both_stages_and_one_that_dies_takes_none_along(
    template: Template, tmp_path: Path, fault: dict[str, int]
):
    base, log = write_model(tmp_path / "model", num_hidden_layers=2), tmp_path / "log"
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_PORT": str(free_ports(1)[0])}
    with running_receivers(3) as urls, log.open("ab") as output:
        set_fault(urls[0], **fault)
        started = [
            template.start(
                "fakes.stage_publisher",
                [str(base), str(tmp_path / "publications"), json.dumps(urls)],
                environment=environment | {"RANK": str(rank)},
                output=output,
            )
            for rank in range(2)
        ]
        assert finish_trainer(started, timeout_seconds=120) == [0, 0], log.read_text()[-6000:]
        left = urls[1:] if fault else urls
        states = [state_of(url) for url in left]
    outcomes = json.loads((tmp_path / "publications" / "outcomes.json").read_text())
    assert [[each[url][0] for url in left] for each in outcomes] == [[True] * len(left)] * 3, outcomes
    assert all(not each[urls[0]][0] for each in outcomes) == bool(fault)
    # The groups of both stages were left at the end.
    assert [(state["version"], state["num_groups"]) for state in states] == [("2", 0)] * len(left)
    publication = read_publication(tmp_path / "publications" / "v2")
    weights = dict(read_weights(publication.folder))
    assert digests_of(weights) == publication.digests
    wanted = dict(reference_model(base).named_parameters())
    assert weights.keys() == wanted.keys()
    # Three steps of one.
    assert all(torch.equal(weights[name], tensor + 1 + 1 + 1) for name, tensor in wanted.items())
