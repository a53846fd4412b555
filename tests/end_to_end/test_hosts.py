"""A run on hosts that share a network and no disk: controller, trainer and one server on the first, a second
server by `asyncrl serve` on another one, real SGLang and Megatron. The cable of that one is pulled in mid-run
and plugged in again."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.host_run import ASYNCRL, HostRun
from fakes.hosts import Host, Hosts, make_hosts

from asyncrl.journal.conservation import read_conservation

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1500)]
KEY = "the-key-of-the-user"
PORT, SERVER_PORT = 4711, 30000
STATUS = """
import json, sys, urllib.error, urllib.request
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
found = {}
for words in json.loads(sys.argv[1]):
    method, url = words.split()
    try:
        request = urllib.request.Request(url, b"{}" if method == "POST" else None)
        with direct.open(request, timeout=30) as answer:
            found[words] = answer.status
    except urllib.error.HTTPError as error:
        found[words] = error.code
print(json.dumps(found))
"""
CONTROLLER = ("POST /take", "POST /commit", "POST /drain", "POST /servers", "GET /files/recipe.yaml")
CONTROLLER += ("GET /files/model/listing.json", "GET /files/publications/v1/listing.json", "GET /anything")
SERVER = ("POST /generate", "POST /update_weights_from_disk", "POST /pause_generation", "GET /server_info")
SERVER += ("GET /health_generate", "GET /health", "GET /metrics", "GET /anything")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with make_hosts(3, tmp_path) as hosts:
        yield hosts


def statuses(host: Host, requests: list[str]) -> dict[str, int]:
    """Of requests without a token from `host`."""
    found: dict[str, int] = json.loads(host.run(sys.executable, "-c", STATUS, json.dumps(requests)))
    return found


def listening(host: Host) -> set[int]:
    """Ports of `host` that other hosts reach."""
    rows = [line.split()[3] for line in host.run("ss", "-ltnH").splitlines()]
    return {int(row.rpartition(":")[2]) for row in rows if not row.startswith(("127.", "[::1]"))}


def start_server(first: Host, second: Host) -> tuple[subprocess.Popen[str], str, Path]:
    """A server on the second host for the run on the first: its process, URL and output."""
    log = second.folder / "output"
    serve = [*ASYNCRL, "serve", f"http://{first.address}:{PORT}", "--port", str(SERVER_PORT)]
    joined = second.start(*serve, log=log, ASYNCRL_TOKEN=KEY)
    return joined, f"http://{second.address}:{SERVER_PORT}", log


def add(run: HostRun, first: Host, there: str, log: Path) -> None:
    """It serves then."""
    run.wait_for(lambda: f"ready     {there}" in log.read_text(), "the server", seconds=600)
    first.run(*ASYNCRL, "servers", str(run.run_folder), "add", there)
    run.wait_for(lambda: f"server {there} serves version" in run.output(), "its weights", seconds=300)


def check_books(run: HostRun) -> None:
    """Every generated token is accounted for."""
    books = read_conservation(run.run_folder / "journal.sqlite")
    out = sum(tokens for name, tokens in books.items() if name != "generated")
    assert books["generated"] == out > 0 and books["queued"] == 0, books


def servers(run: HostRun, host: Host) -> dict[str, Any]:
    """URL -> state."""
    said = host.run(*ASYNCRL, "servers", str(run.run_folder), "list")
    return {line.split()[0]: line.split()[1] for line in said.splitlines()}


def test_a_run_heals_when_the_cable_of_a_server_without_a_shared_disk_is_pulled(hosts: Hosts) -> None:
    first, second, third = hosts.all
    run = HostRun(
        first,
        environment={"SGLANG_KEY": KEY},
        cluster={"bind_address": "0.0.0.0", "port": PORT, "shared_disk": False},
        serving={"api_key_variable": "SGLANG_KEY", "request_timeout_seconds": 20},
        trainer={"num_steps": 4000},
    ).start()
    controller = f"http://{first.address}:{PORT}"
    run.wait_for(lambda: len(run.steps()) >= 1, "step 1", seconds=600)
    assert (run.run_folder / "controller.url").read_text() == controller
    # Nothing of the first host is to be seen on the second.
    assert second.run("find", str(first.folder), "-type", "f") == ""

    joined, there, log = start_server(first, second)
    add(run, first, there, log)
    (here,) = servers(run, first).keys() - {there}

    asked = [f"{line.replace(' ', f' {controller}')}" for line in CONTROLLER]
    asked += [line.replace(" ", f" {url}") for line in SERVER for url in (here, there)]
    assert set(statuses(third, asked).values()) == {401}
    health = [f"GET {controller}/health", f"GET {here}/ready", f"GET {there}/ready"]
    # A server that takes weights at this moment says 503.
    assert set(statuses(third, health).values()) <= {200, 503}
    assert listening(first) == {PORT, int(here.rpartition(":")[2])}
    assert listening(second) == {SERVER_PORT}

    hosts.pull(second)
    run.wait_for(lambda: f"server {there} leaves" in run.output(), "the loss of the server", seconds=120)
    num_steps = len(run.steps())
    run.wait_for(lambda: len(run.steps()) >= num_steps + 4, "steps without it", seconds=300)
    told = len(run.output())
    hosts.plug_in(second)
    run.wait_for(lambda: f"server {there} serves version" in run.output()[told:], "its return", seconds=300)
    assert servers(run, first) == {here: "serving", there: "serving"}
    assert joined.poll() is None and "restarts" not in log.read_text()

    run.kill(signal.SIGINT)
    assert run.finish() == 130, run.output()
    num_steps = len(run.steps())
    run.set("trainer.num_steps", num_steps + 6)
    run.start()
    # The server that was added is still there.
    run.wait_for(lambda: len(run.steps()) > num_steps, "a step after the restart", seconds=300)
    assert run.finish(seconds=600) == 0, run.output()
    check_books(run)
    assert run.query(f"SELECT count(*) FROM streams WHERE server = '{there}'") != [(0,)]
    assert run.evaluation("after")["greedy_accuracy"] > run.evaluation("before")["greedy_accuracy"]
    assert KEY not in run.output() + log.read_text()
