"""Every way of sending weights, to a real server: what it holds afterwards is what the trainer published."""

import asyncio
import json
import os
import urllib.request
from pathlib import Path

import pytest
import torch
from fakes.policies import build_model
from serving.engine import servers

from asyncrl.model.folder import check_model_folder
from asyncrl.serving.publication import Load, read_publication
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights, read_weights
from asyncrl.trainer.network.model import PolicyModel
from asyncrl.trainer.publishing import host_weights
from asyncrl.trainer.publishing.encodings import INTEGERS, DeltaFolders, LoadDeltas, MemoryFolders
from asyncrl.trainer.publishing.host_weights import FolderWriter, HostWeights
from asyncrl.trainer.publishing.publish import PublicationFolders, Publisher
from asyncrl.trainer.publishing.transports import publisher_of
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


def deltas(folders: PublicationFolders, load: Load) -> tuple[DeltaFolders, Load]:
    made = DeltaFolders(folders, is_auto=False, is_compressed=True, bucket_bytes=100_000)
    return made, LoadDeltas(load, wait=folders.wait)


def in_memory(folders: PublicationFolders, load: Load) -> tuple[MemoryFolders, Load]:
    return MemoryFolders(folders, bucket_bytes=100_000), load


ENCODED = {"delta": deltas, "memory": in_memory}


@pytest.fixture(params=["disk", "delta", "memory", "distributed"])
def publisher(request, folders: list[Path], tmp_path: Path):
    # Several buckets, one of them a tensor larger than the limit.
    publisher = publisher_of(
        request.param,
        tmp_path / "publications",
        base=folders[0],
        encoded=ENCODED.get(request.param, lambda *whole: whole),
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
@pytest.mark.parametrize("publisher", ["memory"], indirect=True)
def test_a_version_in_memory_is_complete_before_it_is_on_disk(publisher, server, model, folders, monkeypatch):
    begun = []
    with monkeypatch.context() as patch:
        patch.setattr(FolderWriter, "begin", lambda *arguments, **named: begun.append((arguments, named)))
        load_weights(model, open_weights(folders[1]))
        publication = publisher.prepare(1, model)
    files = [*publication.folder.glob("*.safetensors")]
    assert len(files) > 2 and all(file.is_symlink() for file in files)
    (outcome,) = publisher.install(publication, model, [server]).values()
    assert outcome.is_installed, outcome.detail
    assert read_publication(publication.folder) == publication
    ((writer, *arguments), named) = begun[0]
    FolderWriter.begin(writer, *arguments, **named)
    writer.wait()
    assert not any(file.is_symlink() for file in files)
    written, wanted = (dict(read_weights(folder)) for folder in (publication.folder, folders[1]))
    assert written.keys() == wanted.keys()
    assert all(torch.equal(written[name], wanted[name]) for name in wanted)


@on_an_engine
@pytest.mark.parametrize("publisher", ["memory"], indirect=True)
def test_a_rank_without_a_bucket_gathers_the_same_tensors_as_the_others(publisher, model, monkeypatch):
    asked = []
    monkeypatch.setattr(HostWeights, "own", lambda _: {})
    monkeypatch.setattr(
        host_weights, "export_stages", lambda model, *, with_fixed: iter(asked.append(with_fixed) or ())
    )
    for version in (1, 2):
        publisher.prepare(version, model)
    assert asked == [True, False]


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


def log_probs(url: str) -> list[tuple[float, int]]:
    """The likeliest tokens, one after the other."""

    async def ask() -> list[tuple[float, int]]:
        async with servers.new_session() as session:
            async with session.post(f"{url}/flush_cache") as reply:
                assert reply.status == 200
            params = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
            body = {"input_ids": [2, 3, 4, 5], "sampling_params": params, "return_logprob": True}
            reply = await servers.post(session, f"{url}/generate", body)
        return [(entry[0], entry[1]) for entry in reply["meta_info"]["output_token_logprobs"]]

    return asyncio.run(ask())


def assert_chain_holds(url: str, model: PolicyModel, base: Path, folder: Path, *, num_versions: int) -> None:
    """Each version arrives as a delta, and the server computes as when all weights are loaded."""
    chained = Publisher(folder / "deltas", base=base, encoded=deltas, failed=pytest.fail)
    whole = Publisher(folder / "whole", base=base, failed=pytest.fail)
    for version in range(num_versions + 1):
        publication = chained.prepare(version, model)
        assert publication.sources()[0].name == (f"v{version}.delta" if version else "v0")
        (outcome,) = chained.install(publication, model, [url]).values()
        assert outcome.is_installed and not outcome.detail, outcome.detail
        found = log_probs(url)
        (outcome,) = whole.install(whole.write(version, model), model, [url]).values()
        assert outcome.is_installed, outcome.detail
        assert log_probs(url) == found
        generator = torch.Generator().manual_seed(version)
        for parameter in model.parameters():
            bits = parameter.data.view(-1).view(INTEGERS[parameter.dtype.itemsize])
            bits[torch.randperm(len(bits), generator=generator)[: 1 + len(bits) // 100]] ^= 2
    for publisher in (chained, whole):
        publisher.close()


@on_an_engine
def test_a_chain_of_deltas_leaves_the_weights_of_whole_versions(server, model, folders, tmp_path):
    assert_chain_holds(server, model, folders[0], tmp_path, num_versions=3)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_fifty_deltas_in_bfloat16_leave_the_weights_of_whole_versions(
    num_ranks: int, tmp_path: Path, monkeypatch
):
    cores = sorted(os.sched_getaffinity(0))[:num_ranks]
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "|".join(map(str, cores)))
    base = servers.write_model(tmp_path / "model", seed=0)
    model = build_model(check_model_folder(base), torch.bfloat16)
    load_weights(model, open_weights(base))
    with servers.running_server(
        base, tmp_path / "log", dtype="bfloat16", tensor_parallel_size=num_ranks, max_total_tokens=2048
    ) as (url, _):
        assert_chain_holds(url, model, base, tmp_path, num_versions=50)


@on_an_engine
@pytest.mark.parametrize("publisher", ["delta"], indirect=True)
def test_a_delta_that_is_damaged_on_its_way_is_healed(publisher, server, model, folders):
    load_weights(model, open_weights(folders[1]))
    (outcome,) = publish(publisher, 1, model, [server])
    assert outcome.is_installed and not outcome.detail
    load_weights(model, open_weights(folders[0]))
    publication = publisher.prepare(2, model)
    (file,) = (publisher.folder / "v2.delta").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    (outcome,) = publisher.install(publication, model, [server]).values()
    assert outcome.is_installed and "DeltaRefused" in outcome.detail


@on_an_engine
def test_a_server_that_is_gone_is_an_outcome(publisher, model, folders):
    load_weights(model, open_weights(folders[1]))
    (outcome,) = publish(publisher, 1, model, ["http://127.0.0.1:9"])
    assert not outcome.is_installed and " failed: " in outcome.detail


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
