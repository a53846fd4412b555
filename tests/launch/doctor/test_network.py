"""Loopback, the machine's name, the hub and proxies: real sockets, and ones that refuse."""

import socket

import pytest
from fakes.hub import running_hub

from asyncrl.launch.doctor import network
from asyncrl.launch.doctor.network import HubAnswer
from asyncrl.launch.doctor.probe import State


def refuse(*words: object) -> None:
    raise ConnectionRefusedError(111, "Connection refused")


def test_this_machine_talks_to_itself() -> None:
    found = network.ports()
    assert found.state is State.OK


def test_without_loopback_or_free_ports_no_run_starts() -> None:
    def none_free(count: int) -> list[int]:
        raise OSError(f"fewer than {count} free ports")

    for options in ({"talk": refuse}, {"reserve": none_free}):
        found = network.ports(**options)
        assert found.state is State.BROKEN and found.fix


def test_a_name_that_nothing_resolves_is_lost() -> None:
    def unknown(name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    fine = network.host_name(name=lambda: "node-7", resolve=lambda name: "10.0.0.7")
    assert fine.found == "node-7 is 10.0.0.7"
    found = network.host_name(name=lambda: "node-7", resolve=unknown)
    assert found.state is State.LOST and "127.0.1.1 node-7" in found.fix


def test_a_hub_that_answers_is_fine() -> None:
    with running_hub() as hub:
        # It knows the page of no repository, and the front page as little: any answer below 400 is one.
        answer = network.ask_hub(f"{hub.url}/", None)
        assert answer.status == 404 and hub.requests == ["HEAD /"]
    found = network.hub({}, settings=lambda: (hub.url, None), ask=lambda url, token: HubAnswer(200, 0.1))
    assert found.state is State.OK and "no token" in found.found


def test_a_hub_that_does_not_answer_leaves_folders_and_caches() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        found = network.hub({}, settings=lambda: (url, None))
    assert found.state is State.LOST and found.found.startswith(f"{url} cannot be reached: ConnectError")
    assert "HF_ENDPOINT" in found.fix


def test_offline_variables_are_named_and_the_hub_is_not_asked() -> None:
    found = network.hub({"HF_HUB_OFFLINE": "1"}, settings=refuse)
    assert found.state is State.LOST and found.fix == "Unset HF_HUB_OFFLINE to fetch."


@pytest.mark.parametrize(("status", "state"), [(200, State.OK), (401, State.LOST), (503, State.OK)])
def test_a_token_is_tried_and_never_shown(status: int, state: State) -> None:
    def ask(url: str, token: str | None) -> HubAnswer:
        return HubAnswer(200 if token is None else status, 0.1)

    found = network.hub({}, settings=lambda: ("https://hub", "hf_secret"), ask=ask)
    assert found.state is state and "hf_secret" not in repr(found)


def test_a_hub_that_refuses_everything_is_lost() -> None:
    found = network.hub({}, settings=lambda: ("https://hub", None), ask=lambda *words: HubAnswer(502, 0.1))
    assert found.state is State.LOST and "502" in found.found


def test_proxies_are_reached_and_their_passwords_are_not_shown() -> None:
    assert [each.found for each in network.proxies({})] == ["none"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (fine,) = network.proxies({"https_proxy": f"http://me:secret@127.0.0.1:{port}"})
    assert fine.state is State.OK and "secret" not in repr(fine)
    (gone,) = network.proxies({"HTTPS_PROXY": "proxy.corp:8080"}, reach=refuse)
    assert gone.state is State.LOST and "proxy.corp:8080 does not answer" in gone.found
    for value in ("http://[::1", "http://"):
        (wrong,) = network.proxies({"all_proxy": value}, reach=refuse)
        assert wrong.state is State.LOST and wrong.fix == "Correct or unset all_proxy."
