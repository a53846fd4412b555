"""Deltas of the trainer's weights: what servers hold afterwards, and who gets all of them instead."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from fakes.engine import FakeEngine
from fakes.models import write_model
from fakes.policies import build_model
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.model.folder import check_model_folder
from asyncrl.recipe.sections.model import Lora
from asyncrl.serving.delta import DELTAS_PER_ANCHOR
from asyncrl.trainer.network.convert import export_weights, load_weights
from asyncrl.trainer.network.export import load_base, open_weights, read_weights
from asyncrl.trainer.network.model import PolicyModel, build_policy
from asyncrl.trainer.publishing.encodings import INTEGERS, DeltaFolders, LoadDeltas, changed_words
from asyncrl.trainer.publishing.host_weights import digests_of
from asyncrl.trainer.publishing.publish import Publisher


@pytest.fixture
def model(folder: Path) -> PolicyModel:
    model = build_model(check_model_folder(folder), torch.bfloat16)
    load_weights(model, open_weights(folder))
    return model


@pytest.fixture
def publisher(folder: Path, tmp_path: Path) -> Iterator[Publisher]:
    publisher = delta_publisher(folder, tmp_path)
    yield publisher
    publisher.close()


def delta_publisher(folder: Path, place: Path, *, is_auto: bool = True) -> Publisher:
    def encoded(folders, load):
        deltas = DeltaFolders(folders, is_auto=is_auto, is_compressed=True, bucket_bytes=20_000)
        return deltas, LoadDeltas(load, wait=folders.wait)

    return Publisher(place / "publications", base=folder, encoded=encoded, failed=pytest.fail)


@pytest.fixture
def run() -> Iterator[Callable]:
    """Runs a coroutine on an event loop of its own, as servers are processes of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def engines(run: Callable) -> Iterator[tuple[FakeEngine, FakeEngine]]:
    engines = FakeEngine(), FakeEngine()
    for engine in engines:
        run(engine.__aenter__())
    yield engines
    for engine in engines:
        run(engine.__aexit__())


def step(model, share: float = 0.01, *, seed: int = 0) -> None:
    """Changes the last bits of a share of the trained numbers, at least one of each tensor."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            bits = parameter.data.view(-1).view(INTEGERS[parameter.dtype.itemsize])
            count = max(1, int(share * len(bits)))
            bits[torch.randperm(len(bits), generator=generator)[:count]] ^= 1


def publish(publisher: Publisher, version: int, model, engines) -> list[str]:
    """The details of the outcomes, each of a server that took the version; all hold the model's bytes."""
    publication = publisher.prepare(version, model)
    assert publication.digests == digests_of(dict(export_weights(model)))
    outcomes = publisher.install(publication, model, [engine.url for engine in engines])
    assert all(outcome.is_installed for outcome in outcomes.values()), outcomes
    assert all(engine.digests == publication.digests for engine in engines)
    return [outcome.detail for outcome in outcomes.values()]


@mock.patch("asyncrl.trainer.publishing.encodings.CHUNK_WORDS", 16)
@given(st.lists(st.tuples(*[st.integers(0, 2**16 - 1)] * 2), min_size=1, max_size=40))
def test_any_bits_that_differ_are_found(words: list[tuple[int, int]]):
    old, new = (torch.tensor(side, dtype=torch.uint16) for side in zip(*words, strict=True))
    positions, changes = changed_words(old.view(torch.bfloat16), new.view(torch.bfloat16))
    assert {p: x for p, x in zip(positions.tolist(), changes.tolist(), strict=True)} == {
        place: a ^ b for place, (a, b) in enumerate(words) if a != b
    }


def test_servers_with_the_version_before_get_what_changed(publisher: Publisher, model: PolicyModel, engines):
    publish(publisher, 0, model, engines)
    whole_bytes = publisher.columns({})["publish_bytes"]
    for version in range(1, 5):
        step(model, seed=version)
        assert publish(publisher, version, model, engines) == ["", ""]
        columns = publisher.columns({})
        assert 0.005 < columns["changed_share"] < 0.02
        assert columns["publish_bytes"] < 0.2 * whole_bytes
    wanted = ["v0", *(f"v{version}.delta" for version in range(1, 5))]
    assert [engine.loaded for engine in engines] == [wanted, wanted]
    publisher._folders.wait()
    names = sorted(path.name for path in publisher.folder.iterdir())
    assert names == ["v3", "v3.delta", "v4", "v4.delta"]


def test_the_whole_folder_of_a_delta_is_written_for_servers_that_join(
    folder: Path, publisher: Publisher, model: PolicyModel, engines
):
    publish(publisher, 0, model, engines)
    step(model)
    publication = publisher.prepare(1, model)
    publisher._folders.wait()
    weights = dict(read_weights(publication.folder))
    assert digests_of(weights) == publication.digests == digests_of(dict(export_weights(model)))


def test_a_server_that_is_not_at_the_base_gets_all_weights_and_says_why(
    publisher: Publisher, model: PolicyModel, engines
):
    publish(publisher, 0, model, engines)
    step(model)
    # The second one skips a version, as one that failed.
    publish(publisher, 1, model, engines[:1])
    step(model, seed=1)
    first, second = publish(publisher, 2, model, engines)
    assert first == "" and "DeltaRefused" in second and "is not the version before" in second
    step(model, seed=2)
    assert publish(publisher, 3, model, engines) == ["", ""]
    assert [engine.loaded for engine in engines] == [
        ["v0", "v1.delta", "v2.delta", "v3.delta"],
        ["v0", "v2", "v3.delta"],
    ]
    assert publisher.columns({})["num_healed_publishes"] == 0.0


def test_a_server_that_started_again_gets_all_weights(publisher: Publisher, model: PolicyModel, run, engines):
    publish(publisher, 0, model, engines[:1])
    step(model)
    (detail,) = publish(publisher, 1, model, engines[1:])
    assert "no copy of the version before" in detail and engines[1].loaded == ["v1"]


def test_many_changes_and_anchors_are_sent_whole(publisher: Publisher, model: PolicyModel, engines):
    one = engines[:1]
    publish(publisher, 0, model, one)
    step(model, 0.5)
    publish(publisher, 1, model, one)
    assert publisher.columns({})["changed_share"] == pytest.approx(0.5, abs=0.01)
    # No server was told to keep version 1.
    step(model)
    publish(publisher, 2, model, one)
    for version in range(3, 4 + DELTAS_PER_ANCHOR):
        step(model, seed=version)
        assert publish(publisher, version, model, one) == [""]
    deltas = [f"v{version}.delta" for version in range(3, 3 + DELTAS_PER_ANCHOR)]
    assert engines[0].loaded == ["v0", "v1", "v2", *deltas, f"v{3 + DELTAS_PER_ANCHOR}"]


def test_deltas_that_are_asked_for_are_sent_however_much_changed(
    folder: Path, tmp_path: Path, model: PolicyModel, engines
):
    publisher = delta_publisher(folder, tmp_path, is_auto=False)
    for version in range(3):
        assert publish(publisher, version, model, engines[:1]) == [""]
        step(model, 0.9, seed=version)
    publisher.close()
    assert engines[0].loaded == ["v0", "v1.delta", "v2.delta"]


def test_a_trainer_that_starts_again_sends_all_and_knows_no_delta_of_another(
    folder: Path, tmp_path: Path, model: PolicyModel, engines
):
    for life in range(2):
        publisher = delta_publisher(folder, tmp_path)
        for version in (3, 4):
            publish(publisher, version, model, engines[:1])
            step(model, seed=10 * life + version)
        publisher.close()
    # From the checkpoint of version 3; its predecessor's v4.delta is gone when v3 is written.
    assert engines[0].loaded == ["v3", "v4.delta", "v3", "v4.delta"]


def test_a_version_that_is_written_again_is_whole(publisher: Publisher, model: PolicyModel, engines):
    publish(publisher, 0, model, engines)
    step(model)
    publish(publisher, 1, model, engines)
    publication = publisher.write(1, model)
    assert publication.sources() == [publication.folder]
    step(model)
    assert publish(publisher, 2, model, engines[:1]) == [""]


@pytest.mark.parametrize("is_adapted", [False, True])
def test_what_no_step_changes_is_neither_compared_nor_written_again(
    publisher: Publisher, folder: Path, engines, is_adapted: bool
):
    if is_adapted:
        lora = Lora(rank=2, targets=["o_proj"])
        policy = build_policy(check_model_folder(folder), torch.bfloat16, lora=lora)
        load_base(policy, open_weights(folder), seed=0)
    else:
        policy = build_model(check_model_folder(folder), torch.bfloat16)
        load_weights(policy, open_weights(folder))
        for name, parameter in policy.named_parameters():
            parameter.requires_grad_("linear_fc2" in name)
    base = digests_of(dict(export_weights(policy)))
    # Both began with the base model; the second with another one.
    engines[0].digests, engines[1].digests = dict(base), {}
    for version in range(3):
        details = publish(publisher, version, policy, engines)
        assert [bool(detail) for detail in details] == [False, version == 0]
        if is_adapted:
            with torch.no_grad():
                for name, parameter in policy.named_parameters():
                    parameter.add_(2e-5 if name.endswith(".b") else 0.0)
        else:
            step(policy, seed=version)
    assert [engine.loaded for engine in engines] == [
        ["v0.changed", "v1.delta", "v2.delta"],
        ["v0.changed", "v0", "v1.delta", "v2.delta"],
    ]
    publisher._folders.wait()
    first, second = (
        {file.stat().st_ino for file in (publisher.folder / name).glob("*.safetensors")}
        for name in ("v1", "v2")
    )
    # The same file, not written again.
    assert first & second


def test_a_delta_that_is_damaged_on_its_way_is_healed(publisher: Publisher, model: PolicyModel, engines):
    publish(publisher, 0, model, engines[:1])
    step(model)
    publication = publisher.prepare(1, model)
    (file,) = (publisher.folder / "v1.delta").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    (outcome,) = publisher.install(publication, model, [engines[0].url]).values()
    assert outcome.is_installed and "DeltaRefused" in outcome.detail
    assert publisher.columns({"": outcome})["num_healed_publishes"] == 1.0
    assert engines[0].digests == publication.digests
    step(model, seed=1)
    assert publish(publisher, 2, model, engines[:1]) == [""]


def test_a_model_in_float32_is_compared_word_by_word_too(folder: Path, tmp_path: Path, engines):
    model = build_model(check_model_folder(folder), torch.float32)
    load_weights(model, open_weights(write_model(tmp_path / "other", seed=1)))
    publisher = delta_publisher(folder, tmp_path, is_auto=False)
    for version in range(3):
        assert publish(publisher, version, model, engines[:1]) == [""]
        step(model, seed=version)
    publisher.close()
