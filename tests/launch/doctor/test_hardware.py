"""Processor, memory, control groups, shared memory, limits and clocks, with and without."""

import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from asyncrl.launch.doctor import hardware
from asyncrl.launch.doctor.hardware import Clocks, clock
from asyncrl.launch.doctor.probe import Finding, State
from asyncrl.system.machine import MachineMemory


def write_cpuinfo(folder: Path, flags: str) -> Path:
    file = folder / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: {flags}\n")
    return file


@pytest.mark.parametrize(
    ("flags", "states"),
    [
        ("fpu avx512_bf16 amx_bf16 amx_tile amx_int8", [State.OK]),
        ("fpu avx512_bf16", [State.OK]),
        ("fpu avx2 avx512f", [State.LOST]),
        ("fpu avx512_bf16 amx_tile amx_int8", [State.OK, State.LOST]),
    ],
)
def test_a_cpu_without_products_of_bfloat16_loses_speed(
    tmp_path: Path, flags: str, states: list[State]
) -> None:
    found = list(hardware.cpu(write_cpuinfo(tmp_path, flags)))
    assert [finding.state for finding in found] == states
    assert found[0].found.startswith("Some CPU @ 2 GHz")


def test_a_cpu_that_does_not_say_what_it_has_is_a_line(tmp_path: Path) -> None:
    (found,) = hardware.cpu(tmp_path / "none")
    assert found.state is State.LOST and "cannot be read" in found.found


def test_one_core_is_shared_by_server_and_trainer() -> None:
    fine = hardware.cores(available=lambda: 2, total=lambda: 64)
    assert fine.state is State.OK and fine.found.startswith("2 of 64")
    single = hardware.cores(available=lambda: 1, total=lambda: 1)
    assert single.state is State.LOST and "--cpus" in single.fix


def test_memory_that_no_recipe_fits_into_is_lost() -> None:
    fine = hardware.memory(lambda: MachineMemory(16 * 2**30, 8 * 2**30, is_bounded=False))
    assert fine.found == "8.0 GiB free of 16.0 GiB"
    small = hardware.memory(lambda: MachineMemory(4 * 2**30, 2 * 2**30, is_bounded=True))
    assert small.state is State.LOST and "control group" in small.found


def test_control_groups_of_either_version_are_read(tmp_path: Path) -> None:
    own, mounted = tmp_path / "own", tmp_path / "mounted"
    mounted.mkdir()
    own.write_text("0::/job\n")
    none = hardware.control_groups(own, mounted)
    assert none.state is State.LOST and "memory_gib" in none.fix
    (mounted / "cgroup.controllers").write_text("cpu memory\n")
    second = hardware.control_groups(own, mounted)
    assert second.state is State.OK and "version 2" in second.found
    own.write_text("4:memory:/job\n")
    (mounted / "cgroup.controllers").unlink()
    (mounted / "memory").mkdir()
    first = hardware.control_groups(own, mounted)
    assert first.state is State.OK and "version 1" in first.found


def test_a_small_dev_shm_is_lost_and_one_that_is_missing_broken(tmp_path: Path) -> None:
    def state(folder: Path, size: int, *, may_write: bool = True) -> State:
        found = hardware.shared_memory(folder, size_of=lambda _: size, may_write=lambda _: may_write)
        return found.state

    assert state(tmp_path, 16 * 2**30) is State.OK
    assert state(tmp_path, 64 * 2**20) is State.LOST
    assert state(tmp_path, 16 * 2**30, may_write=False) is State.BROKEN
    assert state(tmp_path / "none", 0) is State.BROKEN


@pytest.mark.parametrize(
    ("soft", "state"),
    [(128, State.BROKEN), (1024, State.LOST), (65536, State.OK), (resource.RLIM_INFINITY, State.OK)],
)
def test_few_file_descriptors_are_few_trajectories(soft: int, state: State) -> None:
    found = hardware.file_descriptors(lambda: (soft, 524288))
    assert found.state is state
    assert ("ulimit -n 65536" in found.fix) is (state is not State.OK)


NOW = 1_795_000_000.0
"""In November 2026."""


def look(wall: Sequence[float], *, step: float = 0.2, keeps: bool | None = True) -> Finding:
    monotonic, walls = iter([10.0, 10.0 + step]), iter(wall)
    clocks = Clocks(lambda: next(monotonic), lambda: next(walls), lambda seconds: None, lambda: keeps)
    return clock(clocks)


def test_clocks_that_agree_are_fine() -> None:
    for keeps in (True, None):
        assert look([NOW, NOW + 0.2, NOW + 0.2], keeps=keeps).state is State.OK


@pytest.mark.parametrize(
    ("walls", "keeps", "said"),
    [
        ([NOW, NOW + 3.0, NOW + 3.0], True, "the wall clock moved by 3.00 s in 0.20 s"),
        # A clock of another year spoils certificates.
        ([1000.0, 1000.2, 1000.2], True, "HTTPS"),
        # A clock that nothing keeps right differs from others.
        ([NOW, NOW + 0.2, NOW + 0.2], False, "several machines"),
    ],
)
def test_a_wall_clock_that_is_wrong_is_said(walls: list[float], keeps: bool, said: str) -> None:
    found = look(walls, keeps=keeps)
    assert found.state is State.LOST and said in found.found + found.consequence


def test_a_monotonic_clock_that_stands_still_is_broken() -> None:
    assert look([NOW, NOW, NOW], step=0.0).state is State.BROKEN
