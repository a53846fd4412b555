"""Energy counters of GPUs, as a library that tests write tells them."""

import sys
import types

import pytest

from asyncrl.system.energy import EnergyCounter, find_energy


def test_gpus_count_in_millijoules_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {"gpu 0": [5_000, 7_500], "gpu MIG-a": [100, 100]}
    nvml = types.ModuleType("pynvml")
    nvml.nvmlInit = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByIndex = lambda index: f"gpu {index}"  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: f"gpu {uuid}"  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda h: readings[h].pop(0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    first, second = find_energy(["0", "MIG-a"]).counters
    assert (first.name, first.sample()) == ("GPU 0", pytest.approx(2.5))
    assert (second.name, second.sample()) == ("GPU MIG-a", 0.0)


def test_a_run_without_gpus_asks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (find_energy([]).counters, find_energy([]).lacking) == ((), ())


def test_a_driver_that_fails_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))
    sources = find_energy(["0"])
    assert sources.counters == () and "nvmlInit" in sources.lacking[0]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "needs nvidia-ml-py" in find_energy(["0"]).lacking[0]


def test_after_a_failed_reading_nothing_is_claimed() -> None:
    readings = iter([0.0, 4.0, OSError("gone"), 9.0])

    def read() -> float:
        if isinstance(found := next(readings), OSError):
            raise found
        return found

    counter = EnergyCounter("x", read)
    assert [counter.sample() for _ in range(3)] == [4.0, None, None]
