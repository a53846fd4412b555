"""Energy counters of this machine: RAPL of its processors, NVML of its GPUs, where they can be read.

RAPL counts whole processor packages, and their memory where the kernel shows it, whoever runs on them; NVML
counts whole GPUs. A counter only rises, but RAPL's starts again at 0 behind its range.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
_PACKAGE, _PART = re.compile(r"intel-rapl:\d+"), re.compile(r"intel-rapl:\d+:\d+")


class EnergyCounter:
    """Joules since it was made. `wraps_at` is the range of the raw counter, in joules."""

    def __init__(self, name: str, read: Callable[[], float], *, wraps_at: float | None = None) -> None:
        """Raises OSError where it cannot be read."""
        self.name = name
        self._read = read
        self._wraps_at = wraps_at
        self._last = read()
        self._joules: float | None = 0.0

    def sample(self) -> float | None:
        """None from the first reading that failed: what came after it is not known. Between two calls the
        counter may pass its range once: at 300 W a range of 262 kJ takes 15 minutes."""
        if self._joules is None:
            return None
        try:
            now = self._read()
        except OSError:
            self._joules = None
            return None
        risen = now - self._last
        if risen < 0:
            risen = risen + self._wraps_at if self._wraps_at else now
        self._joules += max(0.0, risen)
        self._last = now
        return self._joules


@dataclass(frozen=True, slots=True)
class EnergySources:
    counters: tuple[EnergyCounter, ...]
    lacking: tuple[str, ...]
    """A sentence for each part of the machine whose energy cannot be read."""


def find_energy(gpu_devices: Sequence[str], *, powercap: Path = POWERCAP) -> EnergySources:
    """The counters of this machine's processors and of `gpu_devices` (indices of nvidia-smi, or UUIDs)."""
    cpu, why_no_cpu = _find_rapl(powercap)
    gpu, why_no_gpu = _find_nvml(gpu_devices) if gpu_devices else ([], None)
    lacking = tuple(why for why in (why_no_cpu, why_no_gpu) if why is not None)
    return EnergySources((*cpu, *gpu), lacking)


def _find_rapl(powercap: Path) -> tuple[list[EnergyCounter], str | None]:
    zones = sorted(powercap.glob("intel-rapl:*")) if powercap.is_dir() else []
    found: list[EnergyCounter] = []
    for zone in zones:
        try:
            name = (zone / "name").read_text().strip()
            # Parts of a package (core, uncore) are in its counter, and psys covers what packages count too.
            is_package = _PACKAGE.fullmatch(zone.name) is not None and name != "psys"
            if not is_package and not (_PART.fullmatch(zone.name) and name == "dram"):
                continue
            range_joules = int((zone / "max_energy_range_uj").read_text()) / 1e6
            title = f"{name} {zone.name.removeprefix('intel-rapl:')}"
            found.append(EnergyCounter(title, _microjoules(zone / "energy_uj"), wraps_at=range_joules))
        except PermissionError:
            return [], f"only root may read the energy counters under {powercap}"
        except (OSError, ValueError) as error:
            return [], f"the energy counter {zone} cannot be read: {error}"
    return found, None if found else f"this machine exposes no energy counters under {powercap}"


def _microjoules(path: Path) -> Callable[[], float]:
    def read() -> float:
        try:
            return int(path.read_text()) / 1e6
        except ValueError as error:
            raise OSError(f"{path} holds no number") from error

    return read


def _find_nvml(devices: Sequence[str]) -> tuple[list[EnergyCounter], str | None]:
    # A foreign library over a driver: whatever it raises, a run does without its numbers.
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return [EnergyCounter(f"GPU {device}", _nvml_joules(nvml, device)) for device in devices], None
    except ModuleNotFoundError:
        return [], "the energy of the GPUs needs nvidia-ml-py (pynvml), which is not installed"
    except Exception as error:
        return [], f"the energy of the GPUs cannot be read: {error}"


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
