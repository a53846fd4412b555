import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.engine import FakeEngine
from fakes.models import reference_model
from fakes.policies import load_policy

from asyncrl.model.folder import check_model_folder
from asyncrl.recipe.sections.model import Lora
from asyncrl.serving.publication import read_publication
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.network.export import load_base, open_weights, read_weights
from asyncrl.trainer.network.model import PolicyModel, build_policy
from asyncrl.trainer.publishing.host_weights import digests_of
from asyncrl.trainer.publishing.publish import Publisher


@pytest.fixture(scope="module")
def model(folder: Path) -> PolicyModel:
    return load_policy(folder)


@pytest.fixture
def publisher(folder: Path, tmp_path: Path) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path / "publications", base=folder, failed=print)
    yield publisher
    publisher.close()


@pytest.fixture
def engines() -> Iterator[tuple[FakeEngine, FakeEngine]]:
    """Two servers on an event loop of their own, as they are processes of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

    engines = FakeEngine(), FakeEngine()
    for engine in engines:
        run(engine.__aenter__())
    yield engines
    for engine in engines:
        run(engine.__aexit__())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_publication_holds_weights_configuration_and_digests(
    publisher: Publisher, model: PolicyModel, folder: Path
):
    publication = publisher.write(3, model)
    assert publication.folder == publisher.folder / "v3"
    assert sorted(file.name for file in publication.folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "publication.json",
    ]
    assert read_publication(publication.folder) == publication
    weights = safetensors.torch.load_file(publication.folder / "model.safetensors")
    wanted = dict(reference_model(folder).named_parameters())
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    assert publication.digests == digests_of(weights)


def test_the_last_two_publications_are_kept(publisher: Publisher, model: PolicyModel):
    for version in range(9, 13):
        publisher.write(version, model)
    assert sorted(path.name for path in publisher.folder.iterdir()) == ["v11", "v12"]


def test_publications_of_a_run_that_went_further_are_forgotten(publisher: Publisher, model: PolicyModel):
    # A crash at version 9 and a resume from the checkpoint of version 4.
    for version in (8, 9):
        publisher.write(version, model)
    (publisher.folder / ".v10.part").mkdir()
    publisher.write(4, model)
    assert [path.name for path in publisher.folder.iterdir()] == ["v4"]


def test_a_version_is_installed_on_all_servers_and_verified(
    publisher: Publisher, model: PolicyModel, engines: tuple[FakeEngine, FakeEngine]
):
    urls = [engine.url for engine in engines]
    for version in (1, 2):
        outcomes = publisher.install(publisher.write(version, model), model, urls)
        assert list(outcomes) == urls
        assert all(outcome.is_installed for outcome in outcomes.values())
        assert [engine.version for engine in engines] == [str(version)] * 2


@pytest.mark.parametrize(("trained", "is_worth_it"), [("linear_fc2", True), ("", False)])
def test_frozen_parameters_are_written_and_loaded_once_where_they_are_many(
    publisher: Publisher,
    folder: Path,
    engines: tuple[FakeEngine, FakeEngine],
    trained: str,
    is_worth_it: bool,
):
    """All but the matrices `trained`; else norms alone, which are few."""
    policy = load_policy(folder)
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(trained in name if trained else "norm" not in name)
    for version in (1, 2):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.1 if parameter.requires_grad else 0.0)
        publication = publisher.write(version, policy)
        wanted = dict(export_weights(policy))
        assert publication.digests == digests_of(wanted) == read_publication(publication.folder).digests
        weights = dict(read_weights(publication.folder))
        assert weights.keys() == wanted.keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in wanted.items())
        outcomes = publisher.install(publication, policy, [engines[0].url])
        assert [outcome.detail for outcome in outcomes.values()] == [""]
        changed = publisher.folder / f"v{version}.changed"
        assert changed.is_dir() is is_worth_it
        if is_worth_it:
            assert all(name.endswith("down_proj.weight") for name, _ in read_weights(changed))
    assert engines[0].loaded == (["v1.changed", "v2.changed"] if is_worth_it else ["v1", "v2"])


def test_under_adapters_only_what_they_change_is_written_and_loaded_again(
    publisher: Publisher, folder: Path, engines: tuple[FakeEngine, FakeEngine]
):
    policy = build_policy(check_model_folder(folder), torch.float32, lora=Lora(rank=2, targets=["o_proj"]))
    load_base(policy, open_weights(folder), seed=0)
    # An external server, say, that was started with another model.
    engines[1].holds_base = False
    for version in (1, 2):
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                parameter.add_(0.1 if name.endswith(".b") else 0.0)
        publication = publisher.write(version, policy)
        weights = dict(read_weights(publication.folder))
        wanted = dict(export_weights(policy))
        assert weights.keys() == wanted.keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in wanted.items())
        assert publication.digests == digests_of(wanted) == read_publication(publication.folder).digests
        outcomes = publisher.install(publication, policy, [engine.url for engine in engines])
        details = [outcome.detail for outcome in outcomes.values()]
        assert details[0] == "" and "does not hold version" in details[1]
        changed = dict(read_weights(publisher.folder / f"v{version}.changed"))
        assert changed and all(name.endswith("o_proj.weight") for name in changed)
    assert [engine.loaded for engine in engines] == [
        ["v1.changed", "v2.changed"],
        ["v1.changed", "v1", "v2.changed", "v2"],
    ]
    fixed = [publisher.folder / place for place in ("v1/fixed-model.safetensors", "fixed/model.safetensors")]
    assert fixed[0].samefile(fixed[1]) and fixed[1].samefile(publisher.folder / "v2/fixed-model.safetensors")
    publisher.write(3, policy)
    left = ["fixed", "v2", "v2.changed", "v3", "v3.changed"]
    assert sorted(path.name for path in publisher.folder.iterdir()) == left


def test_a_server_with_other_weights_or_none_is_reported_and_the_rest_are_served(
    publisher: Publisher, model: PolicyModel, engines: tuple[FakeEngine, FakeEngine]
):
    engines[1].is_corrupt = True
    urls = [engine.url for engine in engines] + ["http://127.0.0.1:9"]
    good, corrupt, dead = publisher.install(publisher.write(1, model), model, urls).values()
    assert good.is_installed and good.detail == ""
    assert not corrupt.is_installed and "does not hold version 1" in corrupt.detail
    assert not dead.is_installed and "failed" in dead.detail


def test_a_server_that_went_silent_costs_a_publish_the_time_limit_of_a_request(
    folder: Path, tmp_path: Path, model: PolicyModel, engines: tuple[FakeEngine, FakeEngine]
):
    # It is connected to and says nothing, as behind a cable that was cut.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = [engines[0].url, f"http://127.0.0.1:{silent.getsockname()[1]}"]
        publisher = Publisher(tmp_path / "publications", base=folder, timeout_seconds=0.5, failed=print)
        good, late = publisher.install(publisher.write(1, model), model, urls).values()
        publisher.close()
    assert good.is_installed
    assert not late.is_installed and "TimeoutError" in late.detail
