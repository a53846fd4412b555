"""A run on a Ray cluster whose nodes share a network and no disk: hosts as network namespaces with folders of
their own. Controller on the first, two servers and two trainer ranks on the others, real SGLang and Megatron
over gloo. The trainer's host is powered off in mid-run; another one takes over from the checkpoint that the
controller has."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.host_run import HostRun
from fakes.hosts import Host, Hosts, make_hosts

from asyncrl.journal.conservation import read_conservation
from asyncrl.run.checkpoints import find_newest

pytest.importorskip("ray", reason="Ray is not installed: make setup RAY=1")

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1500)]
RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
SIZE = ("--num-cpus=4", "--object-store-memory=80000000")
PORT = 6379
NUM_STEPS = 16


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with make_hosts(3, tmp_path) as hosts:
        yield hosts


def start_ray(host: Host, *words: str) -> None:
    """A node of the cluster."""
    # The loss of a node is known after some seconds: its connections break without a word.
    quick = {"RAY_health_check_timeout_ms": "3000", "RAY_health_check_failure_threshold": "3"}
    own = {"RAY_memory_monitor_refresh_ms": "0", **quick}
    log, address = host.folder / "ray", f"--node-ip-address={host.address}"
    process = host.start(*RAY, *SIZE, address, *words, log=log, **own)
    deadline = time.monotonic() + 300
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def command_lines(host: Host) -> str:
    return host.run("ps", "axww", "-o", "args")


def test_a_run_without_a_shared_disk_survives_the_loss_of_the_trainers_node(hosts: Hosts) -> None:
    first, *others = hosts.all
    start_ray(first, "--head", f"--port={PORT}", "--num-gpus=0", "--include-dashboard=false")
    for host in others:
        # One of them is enough for everything.
        start_ray(host, f"--address={first.address}:{PORT}", "--num-gpus=4")
    run = HostRun(
        first,
        cluster={"backend": "ray", "address": f"{first.address}:{PORT}", "shared_disk": False},
        serving={"num_servers": 2, "request_timeout_seconds": 20},
        trainer={
            "num_steps": NUM_STEPS,
            "num_processes": 2,
            "checkpoint_every_steps": 2,
            "stop_timeout_seconds": 60,
        },
        evaluation={"every_steps": 4},
    ).start()
    run.wait_for(lambda: len(run.steps()) >= 5, "step 5", seconds=600)
    checkpoints = run.run_folder / "checkpoints"
    assert find_newest(checkpoints).version >= 2
    (victim,) = (host for host in others if "asyncrl.trainer.main" in command_lines(host))
    # Nothing of the controller's host is to be seen there, and what the ranks write is not written here.
    assert victim.run("find", str(first.folder), "-type", "f") == ""
    assert "asyncrl.trainer.main" not in command_lines(first)
    assert "sglang" not in command_lines(first)
    victim.power_off()
    run.wait_for(
        lambda: "The trainer restarts from its last checkpoint, at step" in run.output(), "the restart"
    )
    num_steps = len(run.steps())
    run.wait_for(lambda: len(run.steps()) > num_steps, "steps on the other node", seconds=400)
    run.kill(signal.SIGINT)
    assert run.finish() == 130, run.output()
    # The next start brings the checkpoint to the trainer's node again; its end leaves nothing there.
    run.start()
    assert run.finish(seconds=600) == 0, run.output()
    (left,) = (host for host in others if host is not victim)
    assert left.run("find", str(left.folder / ".cache" / "asyncrl" / "runs"), "-name", "*.distcp") == ""
    assert "was lost" in run.output() and "ActorDiedError" not in run.output()
    books = read_conservation(run.run_folder / "journal.sqlite")
    out = sum(tokens for name, tokens in books.items() if name != "generated")
    assert books["generated"] == out > 0 and books["queued"] == 0, books
    ((num_groups, trained),) = run.query(
        "SELECT count(*), count(DISTINCT taken_version) FROM groups WHERE taken_version >= 0"
    )
    assert (num_groups, trained) == (8 * NUM_STEPS, NUM_STEPS)
    assert find_newest(checkpoints).version == NUM_STEPS
    assert (checkpoints / f"step-{NUM_STEPS}" / "hf" / "model.safetensors").is_file()
    assert run.evaluation("after")["greedy_accuracy"] > run.evaluation("before")["greedy_accuracy"]
