"""Every way of sending weights, to a real server: what it holds afterwards is what the trainer published."""

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest
import torch
from serving.engine import servers

from asyncrl.model.folder import check_model_folder
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.network.model import PolicyModel, build_model
from asyncrl.trainer.publishing.publish import Publisher
from asyncrl.trainer.ranks.update_group import UpdateGroup

on_an_engine = pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)


@pytest.fixture
def folders(shared_engine: tuple[str, list[Path]]) -> list[Path]:
    return shared_engine[1]


@pytest.fixture
def server(shared_engine: tuple[str, list[Path]]):
    url, folders = shared_engine
    yield url

    async def give_back() -> None:
        async with servers.new_session() as session:
            await servers.publish(session, url, folders[0], 0)

    asyncio.run(give_back())


@pytest.fixture
def model(folders: list[Path]) -> PolicyModel:
    return build_model(check_model_folder(folders[0]), torch.float32)


@pytest.fixture(params=["disk", "distributed"])
def publisher(request, folders: list[Path], tmp_path: Path):
    # Several buckets, one of them a tensor larger than the limit.
    publisher = Publisher(
        tmp_path / "publications",
        base=folders[0],
        transport=request.param,
        bucket_bytes=100_000,
        failed=pytest.fail,
    )
    yield publisher
    publisher.close()


def publish(publisher, version, model, urls):
    return publisher.install(publisher.prepare(version, model), model, urls).values()


@on_an_engine
def test_two_versions_in_a_row_arrive_whole(publisher, server, model, folders):
    for version, folder in enumerate(reversed(folders), start=1):
        load_weights(model, open_weights(folder))
        (outcome,) = publish(publisher, version, model, [server])
        assert outcome.is_installed, outcome.detail


@on_an_engine
@pytest.mark.parametrize("publisher", ["disk"], indirect=True)
def test_weights_changed_on_their_way_are_noticed(publisher, server, model, folders):
    load_weights(model, open_weights(folders[1]))
    publication = publisher.write(1, model)
    (file,) = publication.folder.glob("*.safetensors")
    with file.open("r+b") as opened:
        opened.seek(-5, 2)
        (byte,) = opened.read(1)
        opened.seek(-5, 2)
        opened.write(bytes([byte ^ 1]))

    (outcome,) = publisher.install(publication, model, [server]).values()

    assert not outcome.is_installed and "tensors differ" in outcome.detail
    load_weights(model, open_weights(folders[0]))
    (outcome,) = publish(publisher, 2, model, [server])
    assert outcome.is_installed, outcome.detail


@on_an_engine
@pytest.mark.parametrize("publisher", ["distributed"], indirect=True)
def test_a_session_left_open_by_a_dead_trainer_is_closed(publisher, server, model, folders):
    body = urllib.request.Request(
        f"{server}/begin_weight_update", json.dumps({}).encode(), {"Content-Type": "application/json"}
    )
    assert urllib.request.urlopen(body).status == 200
    load_weights(model, open_weights(folders[1]))

    (outcome,) = publish(publisher, 1, model, [server])

    assert outcome.is_installed, outcome.detail


@on_an_engine
def test_a_server_that_is_gone_is_an_outcome(publisher, model, folders):
    load_weights(model, open_weights(folders[1]))
    (outcome,) = publish(publisher, 1, model, ["http://127.0.0.1:9"])
    assert not outcome.is_installed and "pause_generation failed" in outcome.detail


@on_an_engine
@pytest.mark.parametrize("publisher", ["distributed"], indirect=True)
def test_a_bit_that_flips_on_the_way_from_memory_is_noticed(publisher, server, model, folders, monkeypatch):
    load_weights(model, open_weights(folders[1]))
    send = UpdateGroup.send

    def flip_and_send(group, flat):
        flat[7] ^= 1
        return send(group, flat)

    with monkeypatch.context() as patch:
        patch.setattr(UpdateGroup, "send", flip_and_send)
        (outcome,) = publish(publisher, 1, model, [server])
    assert not outcome.is_installed and "tensors differ" in outcome.detail
    (outcome,) = publish(publisher, 2, model, [server])
    assert outcome.is_installed, outcome.detail
