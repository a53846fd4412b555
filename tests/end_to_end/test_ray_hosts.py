"""The Slurm script of docs/scale-out.md on three hosts without a shared disk: Ray with a node on each, real
SGLang and Megatron. A host is switched off in mid-run."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.host_run import HostRun
from fakes.hosts import Host, Hosts, make_hosts

from asyncrl.journal.conservation import read_conservation

pytest.importorskip("ray", reason="Ray is not installed: make setup RAY=1")

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[2]
RAY = {"RAY_memory_monitor_refresh_ms": "0", "RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT": "180"}
"""For many nodes on few processors."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with make_hosts(3, tmp_path) as hosts:
        yield hosts


def slurm_script() -> str:
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", (ROOT / "docs/scale-out.md").read_text(), re.S)
    return str(script)


def write_slurm(folder: Path, hosts: list[Host]) -> None:
    """`srun`, which runs its command on every host at once and exits as the first one's, and `scontrol`."""
    folder.mkdir()
    lines = ["#!/bin/bash", "while [[ $1 == --* ]]; do shift; done"]
    for host in hosts:
        own = [f"{name}={value}" for name, value in host.own_environment().items()]
        lines.append(f'{shlex.join(host.command("env", *own))} "$@" &')
        lines += ["first=$!"] if host is hosts[0] else []
    lines += ["wait $first"]
    (folder / "srun").write_text("\n".join(lines))
    names = "\n".join(f"echo {host.address}" for host in hosts)
    (folder / "scontrol").write_text(f"#!/bin/bash\n{names}\n")
    for program in folder.iterdir():
        program.chmod(0o755)


class SlurmRun(HostRun):
    """The script as Slurm runs it: outside of the hosts, where only `srun` leads to them."""

    def start(self) -> "SlurmRun":
        # What a node of a cluster has: its processors are those of this machine.
        size = "--num-cpus=2 --object-store-memory=80000000"
        script = slurm_script().replace("source .venv/bin/activate\n", "")
        script = script.replace("recipe.yaml", str(self.recipe_path))
        script = script.replace("ray symmetric-run", f"ray symmetric-run {size}")
        path = [str(self.folder.parent / "slurm"), str(ROOT / ".venv" / "bin"), os.environ["PATH"]]
        slurm = {"PATH": ":".join(path), "SLURM_NNODES": "3", "SLURM_JOB_NODELIST": "host[1-3]"}
        with (self.folder / "output").open("a") as output:
            self.process = subprocess.Popen(
                ["bash", "-eu", "-c", script],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **RAY, **slurm},
            )
        return self

    def stop(self) -> None:
        """As Ctrl-C where the run was started."""
        rows = self._host.run("ps", "axww", "-o", "pid=,args=").splitlines()
        (pid,) = (row.split()[0] for row in rows if "asyncrl train" in row and "symmetric-run" not in row)
        self._host.run("kill", "-INT", pid)


def processes_on(host: Host, word: str) -> bool:
    return word in host.run("ps", "axww", "-o", "args")


def test_the_slurm_script_trains_without_a_shared_disk_and_a_lost_host_is_replaced(
    hosts: Hosts, tmp_path: Path
) -> None:
    first, *others = hosts.all
    write_slurm(tmp_path / "slurm", list(hosts.all))
    run = SlurmRun(
        first,
        cluster={"shared_disk": False},
        serving={"num_servers": 2},
        trainer={"num_steps": 4000},
    ).start()
    run.wait_for(lambda: len(run.steps()) >= 4, "step 4", seconds=900)
    assert f"{first.address} alone (cluster.shared_disk is false)" in " ".join(run.output().split())
    assert processes_on(first, "asyncrl.trainer.main")
    victim = next(host for host in others if processes_on(host, "sglang.launch_server"))
    (spare,) = (host for host in others if host is not victim)
    assert list(victim.folder.glob(".cache/asyncrl/models/*/model.safetensors"))
    assert not (spare.folder / ".cache").exists()
    victim.power_off()
    run.wait_for(lambda: "starts on another node" in run.output(), "the loss of the host", seconds=300)
    url = re.compile(rf"server http://{spare.address}:\d+ serves version")
    run.wait_for(lambda: url.search(run.output()) is not None, "its successor", seconds=400)
    assert list(spare.folder.glob(".cache/asyncrl/models/*/model.safetensors"))
    run.stop()
    # The script's exit code is that of the run, and nothing of Ray is left.
    assert run.finish() == 130, run.output()
    assert not processes_on(first, "raylet")
    books = read_conservation(run.run_folder / "journal.sqlite")
    out = sum(tokens for name, tokens in books.items() if name != "generated")
    assert books["generated"] == out > books["queued"], books
    rewards = [row["reward_mean"] for row in run.steps()]
    assert rewards[-1] > rewards[0], rewards
