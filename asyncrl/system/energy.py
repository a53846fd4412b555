"""Energy counters of GPUs, by NVML: each counts a whole GPU, whoever runs on it."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class EnergyCounter:
    """Joules since it was made."""

    def __init__(self, name: str, read: Callable[[], float]) -> None:
        """Raises OSError where it cannot be read."""
        self.name = name
        self._read = read
        self._first: float | None = read()

    def sample(self) -> float | None:
        """None from the first reading that failed: what came after it is not known."""
        if self._first is None:
            return None
        try:
            return self._read() - self._first
        except OSError:
            self._first = None
            return None


@dataclass(frozen=True, slots=True)
class EnergySources:
    counters: tuple[EnergyCounter, ...] = ()
    lacking: tuple[str, ...] = ()
    """A sentence where the energy of the GPUs cannot be read."""


def find_energy(gpu_devices: Sequence[str]) -> EnergySources:
    """The counters of `gpu_devices` (indices of nvidia-smi, or UUIDs)."""
    if not gpu_devices:
        return EnergySources()
    # A foreign library over a driver: whatever it raises, a run does without its numbers.
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        counters = (EnergyCounter(f"GPU {device}", _nvml_joules(nvml, device)) for device in gpu_devices)
        return EnergySources(tuple(counters))
    except ModuleNotFoundError:
        why = "the energy of the GPUs needs nvidia-ml-py (pynvml), which is not installed"
    except Exception as error:
        why = f"the energy of the GPUs cannot be read: {error}"
    return EnergySources(lacking=(why,))


def _nvml_joules(nvml: Any, device: str) -> Callable[[], float]:
    if device.isdecimal():
        handle = nvml.nvmlDeviceGetHandleByIndex(int(device))
    else:
        handle = nvml.nvmlDeviceGetHandleByUUID(device)

    def read() -> float:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except Exception as error:
            raise OSError(str(error)) from error

    return read
