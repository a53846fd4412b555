"""The memory of a run's processes, told by their command lines."""

import subprocess
import sys
from pathlib import Path

from asyncrl.launch.meters.memory import MemoryMeter
from asyncrl.launch.meters.usage import find_families

HOLD = "import sys; held = bytearray({size}); print('held', flush=True); sys.stdin.read()"
MIB = 2**20


def start(*words: str, mib: int) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(size=mib * MIB), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    process.communicate()


def test_ranks_and_servers_are_told_apart_and_the_largest_counts() -> None:
    # Not those that other tests of this process started.
    others = {child.pid for child in find_families()}
    meter = MemoryMeter()

    def measured() -> dict[str, float]:
        families = find_families().items()
        meter.measure({child: family for child, family in families if child.pid not in others})
        return meter.take_row()

    assert measured().keys() == {"controller_memory_gib"}
    running = [
        start("asyncrl.trainer.main", mib=40),
        start("asyncrl.trainer.main", mib=120),
        start("sglang.launch_server", mib=60),
        start("asyncrl.verifier", mib=200),
    ]
    try:
        first, second = measured(), measured()
    finally:
        for process in running:
            end(process)
    assert (
        first.keys()
        == second.keys()
        == {f"{role}_memory_gib" for role in ("controller", "trainer", "server")}
    )
    # The interpreter itself takes about 10 MiB.
    assert 120 / 1024 < first["trainer_memory_gib"] < 160 / 1024
    assert 60 / 1024 < first["server_memory_gib"] < 100 / 1024
    assert measured().keys() == {"controller_memory_gib"}
    assert meter.take_row() == {}, "a measurement is of one step"


def test_what_a_server_started_belongs_to_it(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    inner = HOLD.format(size=100 * MIB)
    program.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}], stdin=sys.stdin)\n"
    )
    outer = subprocess.Popen(
        [sys.executable, str(program), "sglang.launch_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert outer.stdout is not None and outer.stdout.readline() == b"held\n"
    try:
        meter = MemoryMeter()
        meter.measure(find_families())
        assert meter.take_row()["server_memory_gib"] > 100 / 1024
    finally:
        end(outer)
