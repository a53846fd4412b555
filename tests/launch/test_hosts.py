"""What a run's machines know and hand to each other, on hosts with networks and folders of their own."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hosts import Host, Hosts, make_hosts

pytestmark = pytest.mark.exhaustive
TOKEN = "the-token-of-the-run"
PORT = 4711
SERVE = """
import asyncio, sys
from pathlib import Path
from asyncrl.wire.files.service import FileRoutes
from asyncrl.controller.endpoint import Endpoint
from asyncrl.controller.http_service import ControllerService
from asyncrl.wire.access import Keys

async def serve(model):
    files = FileRoutes(model, model.parent)
    endpoint = Endpoint("0.0.0.0", int(sys.argv[3]))
    service = ControllerService(None, files=files, endpoint=endpoint, keys=Keys(sys.argv[2]))
    await service.start()
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(serve(Path(sys.argv[1])))
"""
FETCH = """
import sys
from pathlib import Path
from asyncrl.wire.files.fetch import FetchFailed, fetch_folder
print("begins", flush=True)
try:
    fetch_folder(sys.argv[1], Path(sys.argv[2]), token=sys.argv[3])
except FetchFailed as error:
    sys.exit(str(error))
"""
ADDRESS = "from asyncrl.recipe.sections.cluster import Cluster; print(Cluster(bind_address='0.0.0.0').host())"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with make_hosts(2, tmp_path) as hosts:
        yield hosts


def wait_for_line(log: Path, process: subprocess.Popen[str]) -> None:
    while not log.read_text():
        assert process.poll() is None
        time.sleep(0.02)


def start(host: Host, log: Path, code: str, *words: object) -> subprocess.Popen[str]:
    """`python -c code words`, which has printed its first line."""
    process = host.start(sys.executable, "-c", code, *map(str, words), log=log)
    wait_for_line(log, process)
    return process


def test_a_model_crosses_a_cable_that_was_cut_and_only_with_the_token(hosts: Hosts) -> None:
    first, second = hosts.all
    model, copy = first.folder / "model", second.folder / "copy"
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(range(256)) * 40_000)
    assert second.run("find", str(first.folder)) == f"{first.folder}\n"
    service = start(first, first.folder / "log", SERVE, model, TOKEN, PORT)
    url = f"http://{first.address}:{PORT}/files/model"
    refused = start(second, second.folder / "refused", FETCH, url, copy, "wrong")
    assert refused.wait(60) == 1
    assert "answered 401" in (second.folder / "refused").read_text() and not copy.exists()
    hosts.pull(second)
    fetch = start(second, second.folder / "log", FETCH, url, copy, TOKEN)
    # The first attempt finds no way, unless it is later than this.
    with pytest.raises(subprocess.TimeoutExpired):
        fetch.wait(1)
    hosts.plug_in(second)
    assert fetch.wait(60) == 0, (second.folder / "log").read_text()
    fetched = (copy / "model.safetensors").read_bytes()
    assert fetched == (model / "model.safetensors").read_bytes()
    first.power_off()
    assert service.wait(60) != 0


def test_a_host_tells_others_its_address_on_the_network(hosts: Hosts) -> None:
    first, _ = hosts.all
    assert first.run(sys.executable, "-c", ADDRESS) == f"{first.address}\n"
    first.run("ip", "route", "del", "default")
    # Others could do nothing with it: a run that listens everywhere is refused there.
    assert first.run(sys.executable, "-c", ADDRESS) == "127.0.0.1\n"
