"""Energy counters, read from a tree as the kernel shows it."""

import sys
import types
from pathlib import Path

import pytest

from asyncrl.system.energy import EnergyCounter, find_energy


def write_zone(folder: Path, zone: str, name: str, microjoules: int, *, range_uj: int = 1_000_000) -> Path:
    place = folder / zone
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    return place / "energy_uj"


def test_packages_and_their_memory_count_and_what_lies_within_a_package_does_not(tmp_path: Path) -> None:
    raw = [
        write_zone(tmp_path, "intel-rapl:0", "package-0", 100_000),
        write_zone(tmp_path, "intel-rapl:0:1", "dram", 50_000),
        write_zone(tmp_path, "intel-rapl:0:0", "core", 40_000),
        write_zone(tmp_path, "intel-rapl:1", "psys", 70_000),
    ]
    sources = find_energy([], powercap=tmp_path)
    assert [counter.name for counter in sources.counters] == ["package-0 0", "dram 0:1"]
    assert sources.lacking == ()
    for path in raw:
        path.write_text("350000")
    # 0.35 - 0.1 and 0.35 - 0.05 joules.
    assert [counter.sample() for counter in sources.counters] == pytest.approx([0.25, 0.3])


def test_a_counter_that_starts_again_at_zero_goes_on_from_its_range(tmp_path: Path) -> None:
    raw = write_zone(tmp_path, "intel-rapl:0", "package-0", 900_000, range_uj=1_000_000)
    (counter,) = find_energy([], powercap=tmp_path).counters
    raw.write_text("100000")
    assert counter.sample() == pytest.approx(0.2)
    raw.write_text("300000")
    assert counter.sample() == pytest.approx(0.4)


def test_after_a_failed_reading_nothing_is_claimed(tmp_path: Path) -> None:
    raw = write_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    (counter,) = find_energy([], powercap=tmp_path).counters
    raw.write_text("what")
    assert counter.sample() is None
    raw.write_text("1000")
    assert counter.sample() is None


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    assert find_energy([], powercap=tmp_path / "none").counters == ()
    (why,) = find_energy([], powercap=tmp_path / "none").lacking
    assert "exposes no energy counters" in why


def test_gpus_count_in_millijoules_by_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {"gpu 0": [5_000, 7_500], "gpu MIG-a": [100, 100]}
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = RuntimeError  # type: ignore[attr-defined]
    nvml.nvmlInit = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByIndex = lambda index: f"gpu {index}"  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: f"gpu {uuid}"  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda h: readings[h].pop(0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    first, second = find_energy(["0", "MIG-a"], powercap=tmp_path).counters
    assert (first.name, first.sample()) == ("GPU 0", pytest.approx(2.5))
    assert (second.name, second.sample()) == ("GPU MIG-a", 0.0)


def test_a_driver_that_fails_is_a_reason_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))
    sources = find_energy(["0"], powercap=tmp_path)
    assert sources.counters == () and "nvmlInit" in sources.lacking[1]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "needs nvidia-ml-py" in find_energy(["0"], powercap=tmp_path).lacking[1]


def test_a_counter_without_a_range_that_falls_counts_from_zero() -> None:
    values = iter([10.0, 4.0])
    assert EnergyCounter("x", lambda: next(values)).sample() == 4.0
