"""A whole run on all networks of this machine whose servers see no disk of the trainer: no wire of it answers
without the token, and the token is nowhere to be read but in its file."""

import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

from asyncrl.commands.servers import change_servers
from asyncrl.system.machine import outward_address


def status_of(url: str) -> int:
    """Of a POST without a token."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, b"{}", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.slow
def test_a_run_without_a_shared_disk_learns_behind_closed_wires(tmp_path: Path) -> None:
    run = WholeRun(
        tmp_path,
        cluster={"bind_address": "0.0.0.0", "shared_disk": False},
        evaluation={"num_servers": 1, "every_steps": 4},
    ).start()
    run.wait_for_step(2)
    token_file = run.run_folder / "access.token"
    token = token_file.read_text()
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    controller = (run.run_folder / "controller.url").read_text()
    (server,) = (row["url"] for row in change_servers(run.run_folder, "list", ""))
    assert all(url.startswith(f"http://{outward_address()}:") for url in (controller, server))
    for path in ("/take", "/commit", "/drain", "/servers"):
        assert status_of(controller + path) == 401, path
    for path in ("/generate", "/update_weights_from_disk", "/pause_generation", "/server_info"):
        assert status_of(server + path) == 401, path
    for process in run.family():
        assert token not in " ".join(process.cmdline())
    assert run.finish() == 0, run.output()
    logs = [path for path in run.run_folder.rglob("*") if path.is_file()]
    assert logs and not [path for path in logs if token.encode() in path.read_bytes()]
    assert token not in run.output() and not token_file.exists()
    assert run.evaluation("after")["greedy_accuracy"] > run.evaluation("before")["greedy_accuracy"]
