"""Weights broadcast from memory, over real gloo groups, to processes that load them into a state dict."""

import itertools
import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from fakes.launch_trainer import finish_trainer
from fakes.models import reference_model, write_model
from fakes.policies import load_policy
from fakes.receivers import running_receivers, set_fault, state_of
from fakes.small_disk import refused_writes
from fakes.template import Template

from asyncrl.errors import DiskError
from asyncrl.model.folder import check_model_folder
from asyncrl.recipe.sections.model import Lora
from asyncrl.serving.publication import read_publication
from asyncrl.system.network import free_ports
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.network.export import load_base, open_weights, read_weights
from asyncrl.trainer.network.model import PolicyModel, build_policy
from asyncrl.trainer.publishing import from_memory
from asyncrl.trainer.publishing.from_memory import BroadcastPublisher
from asyncrl.trainer.publishing.host_weights import digests_of
from asyncrl.trainer.publishing.publish import Publisher
from asyncrl.trainer.ranks.update_group import Address, UpdateGroup

BUCKET_BYTES = 20_000
"""Some buckets, one of them a tensor larger than that."""


@pytest.fixture(scope="module")
def model(folder: Path) -> PolicyModel:
    return load_policy(folder)


@pytest.fixture(scope="module")
def started() -> Iterator[list[str]]:
    with running_receivers(5) as urls:
        yield urls


@pytest.fixture
def servers(started: list[str]) -> list[str]:
    """The first four; the fifth is for a test that kills it."""
    for url in started[:4]:
        set_fault(url)
    return started[:4]


@pytest.fixture
def publisher(folder: Path, tmp_path: Path) -> Iterator[Publisher]:
    publisher = BroadcastPublisher(
        tmp_path / "publications", base=folder, bucket_bytes=BUCKET_BYTES, failed=pytest.fail
    )
    yield publisher
    publisher.close()


def publish(publisher: Publisher, version: int, model: PolicyModel, servers: list[str]):
    publication = publisher.prepare(version, model)
    return publication, publisher.install(publication, model, servers)


def test_every_server_takes_every_version_in_one_group(
    publisher: Publisher, model: PolicyModel, servers: list[str]
):
    for version in (1, 2):
        publication, outcomes = publish(publisher, version, model, servers)
        assert [outcome.detail for outcome in outcomes.values()] == [""] * 4
        states = [state_of(url) for url in servers]
        assert [state["version"] for state in states] == [str(version)] * 4
        assert [state["is_paused"] for state in states] == [False] * 4
        # The same group as for the version before.
        assert [state["num_groups"] for state in states] == [1] * 4
        assert states[0]["num_tensors"] == len(publication.digests)


def test_what_no_adapter_changes_is_sent_once_to_each_process(
    folder: Path, publisher: Publisher, servers: list[str]
):
    policy = build_policy(
        check_model_folder(folder), torch.float32, lora=Lora(rank=2, targets=["q_proj", "down_proj"])
    )
    load_base(policy, open_weights(folder), seed=0)
    received = {}
    for version, urls in ((1, servers[:2]), (2, servers[:2]), (3, servers[:3]), (4, servers[:3])):
        for name, parameter in policy.named_parameters():
            if name.endswith(".b"):
                with torch.no_grad():
                    parameter += version
        publication, outcomes = publish(publisher, version, policy, urls)
        assert [outcome.detail for outcome in outcomes.values()] == [""] * len(urls)
        states = [state_of(url) for url in urls]
        assert {state["version"] for state in states} == {str(version)}
        received[version] = {state["num_received"] for state in states}
        publisher.write(version + 1, policy)
        assert read_publication(publication.folder) == publication
        assert digests_of(dict(read_weights(publication.folder))) == publication.digests
        assert publication.digests == digests_of(dict(export_weights(policy)))
    # The third server makes a new group, which gets everything.
    assert received[1] == received[3] and received[2] == received[4]
    assert max(received[2]) < min(received[1])


def test_frozen_parameters_are_sent_once_and_digested_with_every_version(
    folder: Path, publisher: Publisher, servers: list[str]
):
    policy = load_policy(folder)
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_("linear_fc2" in name)
    received = []
    for version in (1, 2):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.1 if parameter.requires_grad else 0.0)
        publication, outcomes = publish(publisher, version, policy, servers[:2])
        assert [outcome.detail for outcome in outcomes.values()] == [""] * 2
        assert publication.digests == digests_of(dict(export_weights(policy)))
        received.append({state_of(url)["num_received"] for url in servers[:2]})
        publisher.write(version + 1, policy)
        assert digests_of(dict(read_weights(publication.folder))) == publication.digests
    assert max(received[1]) < min(received[0])


def test_the_folder_is_written_in_the_background_and_is_the_version(
    publisher: Publisher, model: PolicyModel, servers: list[str]
):
    publication, _ = publish(publisher, 3, model, servers)
    publisher.write(4, model)
    written = read_publication(publication.folder)
    assert written == publication
    assert digests_of(dict(read_weights(publication.folder))) == publication.digests
    assert digests_of(dict(read_weights(publisher.folder / "v4"))) == publication.digests


def test_a_full_disk_leaves_no_half_folder_and_is_told_while_the_servers_serve(
    model: PolicyModel, folder: Path, servers: list[str], tmp_path: Path
):
    failures: list[BaseException] = []
    place = tmp_path / "publications"
    publisher = BroadcastPublisher(place, base=folder, failed=failures.append)
    publication = publisher.prepare(1, model)
    with refused_writes():
        outcomes = publisher.install(publication, model, servers[:2])
        publisher.close()
    assert all(outcome.is_installed for outcome in outcomes.values())
    (failure,) = failures
    assert isinstance(failure, DiskError) and "Publication v1 under" in str(failure)
    assert list(place.iterdir()) == []


def test_without_servers_the_folder_is_written_all_the_same(publisher: Publisher, model: PolicyModel):
    publication, outcomes = publish(publisher, 5, model, [])
    assert outcomes == {}
    publisher.write(6, model)
    assert digests_of(dict(read_weights(publication.folder))) == read_publication(publication.folder).digests


def test_a_flipped_bit_is_refused_with_the_reason_and_the_others_serve(
    publisher: Publisher, model: PolicyModel, servers: list[str]
):
    set_fault(servers[1], flips_at=1)
    _, outcomes = publish(publisher, 7, model, servers)
    assert [outcome.is_installed for outcome in outcomes.values()] == [True, False, True, True]
    assert "does not hold version 7: 1 of" in outcomes[servers[1]].detail
    assert state_of(servers[1])["is_paused"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ranks of each group that is made: the trainer's and the servers'."""
    made: list[int] = []
    begin = UpdateGroup.__init__

    def note(group: UpdateGroup, address: Address, num_others: int, backend: str) -> None:
        made.append(1 + num_others)
        begin(group, address, num_others, backend)

    monkeypatch.setattr(UpdateGroup, "__init__", note)
    return made


@pytest.mark.parametrize("bucket", [0, 1])
def test_a_bucket_that_one_server_refuses_reaches_the_others_in_a_group_without_it(
    publisher: Publisher, model: PolicyModel, servers: list[str], made: list[int], bucket: int
):
    set_fault(servers[0], refuses_at=bucket)
    _, outcomes = publish(publisher, 8, model, servers)
    # A round of all, one for the others and one for it.
    assert made == [5, 4, 2]
    assert [outcome.is_installed for outcome in outcomes.values()] == [False, True, True, True]
    assert "this bucket is refused" in outcomes[servers[0]].detail
    set_fault(servers[0])
    _, outcomes = publish(publisher, 9, model, servers)
    assert all(outcome.is_installed for outcome in outcomes.values())
    assert [state_of(url)["num_groups"] for url in servers] == [1] * 4


def test_a_server_that_dies_in_the_middle_is_an_outcome_and_the_others_take_the_version(
    publisher: Publisher, model: PolicyModel, servers: list[str], started: list[str]
):
    lost = started[4]
    members = [servers[0], lost, servers[1], servers[2]]
    _, outcomes = publish(publisher, 10, model, members)
    assert all(outcome.is_installed for outcome in outcomes.values())
    set_fault(lost, dies_at=1)
    _, outcomes = publish(publisher, 11, model, members)
    assert {url for url, outcome in outcomes.items() if not outcome.is_installed} == {lost}
    assert "failed" in outcomes[lost].detail
    assert [state_of(url)["version"] for url in members if url != lost] == ["11"] * 3
    _, outcomes = publish(publisher, 12, model, members)
    assert {url for url, outcome in outcomes.items() if not outcome.is_installed} == {lost}
    assert [state_of(url)["version"] for url in members if url != lost] == ["12"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "sizes"), [("dies_at", [17, 16]), ("refuses_at", [17, 16, 2])])
def test_one_bad_server_among_sixteen_costs_a_round_or_two(
    publisher: Publisher, model: PolicyModel, made: list[int], fault: str, sizes: list[int]
):
    with running_receivers(16) as urls:
        set_fault(urls[5], **{fault: 1})
        _, outcomes = publish(publisher, 1, model, urls)
        assert [url for url, outcome in outcomes.items() if not outcome.is_installed] == [urls[5]]
        assert made == sizes
        others = [url for url in urls if url != urls[5]]
        assert {state_of(url)["version"] for url in others} == {"1"}
        _, outcomes = publish(publisher, 2, model, others)
        assert all(outcome.is_installed for outcome in outcomes.values()) and len(made) == len(sizes) + 1


def test_the_next_bucket_is_gathered_while_the_last_one_is_sent(
    publisher: Publisher, model: PolicyModel, servers: list[str], monkeypatch: pytest.MonkeyPatch
):
    events: list[str] = []
    send, export = UpdateGroup.send, from_memory.export_stages

    class Work:
        """A broadcast; it says when it is waited for."""

        def __init__(self, work: torch.distributed.Work, number: int) -> None:
            self._work, self._number = work, number

        def wait(self, timeout: timedelta) -> None:
            events.append(f"waited for {self._number}")
            self._work.wait(timeout)

    def note_send(group: UpdateGroup, flat: torch.Tensor) -> Work:
        number = sum(event.startswith("sent") for event in events)
        events.append(f"sent {number}")
        return Work(send(group, flat), number)

    def note_export(*arguments: object, **named: object) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in export(*arguments, **named):
            events.append("gathered")
            yield name, tensor

    monkeypatch.setattr(UpdateGroup, "send", note_send)
    monkeypatch.setattr(from_memory, "export_stages", note_export)
    _, outcomes = publish(publisher, 1, model, servers[:1])
    assert all(outcome.is_installed for outcome in outcomes.values())
    order = [event for event, _ in itertools.groupby(events)]
    num_buckets = order.count("gathered")
    wanted = ["gathered", "sent 0"]
    for number in range(1, num_buckets):
        wanted += ["gathered", f"waited for {number - 1}", f"sent {number}"]
    assert num_buckets > 2 and order == [*wanted, f"waited for {num_buckets - 1}"]


def test_a_first_broadcast_that_does_not_begin_is_given_up_with_the_servers_and_the_knob(
    publisher: Publisher,
    model: PolicyModel,
    servers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    connect, num_groups = UpdateGroup.connect, itertools.count()

    def connect_late_at_first(group: UpdateGroup, device: torch.device, *, timeout_seconds: float) -> None:
        if next(num_groups) == 0:
            raise TimeoutError
        connect(group, device, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(UpdateGroup, "connect", connect_late_at_first)
    _, outcomes = publish(publisher, 15, model, servers[:2])
    # In groups of their own they answer.
    assert all(outcome.is_installed for outcome in outcomes.values())
    message = caplog.records[0].getMessage()
    assert "did not begin within 300 s (serving.request_timeout_seconds)" in message
    assert all(url in message for url in servers[:2])


def test_a_server_that_was_restarted_at_its_address_joins_the_others_again(
    publisher: Publisher, model: PolicyModel, servers: list[str], caplog: pytest.LogCaptureFixture
):
    (port,) = free_ports(1)
    for version in (13, 14):
        with running_receivers(1, [port]) as [restarted]:
            members = [restarted, servers[0]]
            _, outcomes = publish(publisher, version, model, members)
            assert all(outcome.is_installed for outcome in outcomes.values())
            states = [state_of(url) for url in members]
            assert [(state["version"], state["num_groups"]) for state in states] == [(str(version), 1)] * 2
    # Neither was sent to in a group of its own.
    assert not caplog.records


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
