"""What a trainer rank computes on, and what it refuses to compute on in silence."""

import os
import subprocess
import sys
from pathlib import Path

from fakes.gpus import row, write_nvidia_smi


def chosen(device: str, machine: Path) -> subprocess.CompletedProcess[str]:
    """What a rank for `device` says on a machine with a GPU, where torch claims to be a CUDA build and sees
    none: as with a driver that is too old."""
    write_nvidia_smi(machine, [row(0)])
    metadata = machine / "torch-0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.14.1\n")
    code = (
        "import os, sys\n"
        "from asyncrl.trainer.bootstrap import _choose_device, run_rank\n"
        "def work():\n"
        f"    _choose_device({device!r})\n"
        "    print(repr(os.environ['CUDA_VISIBLE_DEVICES']), flush=True)\n"
        "    os._exit(0)\n"
        "sys.exit(run_rank(work))\n"
    )
    environment = {"PATH": str(machine), "PYTHONPATH": str(machine), "CUDA_VISIBLE_DEVICES": "0"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment
    )


def test_a_rank_that_has_gpus_and_cannot_use_them_ends_before_it_trains_on_the_cpu(tmp_path: Path):
    ended = chosen("auto", tmp_path)
    assert ended.returncode == 2
    assert "cannot use the GPUs of this machine (CUDA_VISIBLE_DEVICES: 0). Usually the driver" in ended.stderr


def test_packages_of_servers_that_fail_as_they_are_imported_do_not_end_a_rank(tmp_path: Path):
    # Megatron expects an ImportError of those that are not there, and of nothing else.
    (tmp_path / "deep_ep.py").write_text("raise AssertionError('no CUDA toolkit')\n")
    code = (
        "import asyncrl.trainer.network.model\n"
        "from megatron.core.transformer.moe.fused_a2a import HAVE_DEEP_EP\n"
        "print(HAVE_DEEP_EP)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_rank_for_the_cpu_sees_no_gpu_whoever_started_it(tmp_path: Path):
    assert chosen("cpu", tmp_path).stdout == "''\n"
