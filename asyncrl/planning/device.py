"""The device that a plan is for: the one asked for, else the one that the recipe would use here."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from asyncrl.errors import InputError
from asyncrl.planning.estimated import DEVICES, Device
from asyncrl.recipe import Recipe
from asyncrl.system.gpus import find_gpus
from asyncrl.system.memory import machine_memory

LIKELY_GPU = "H100"
_MATRIX = 768
_COPIED_BYTES = 2**26
_TRIES = 4


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    device: Device
    origin: str
    """A clause: from where it is known."""


def asked_device(name: str) -> PlannedDevice:
    """Raises InputError for a name without a data sheet."""
    if name not in DEVICES:
        raise InputError(f"--device {name} is unknown. Known: {', '.join(DEVICES)}.")
    return PlannedDevice(DEVICES[name], f"--device {name}, by its data sheet")


def planned_device(recipe: Recipe, *, is_elsewhere: bool) -> PlannedDevice:
    """`is_elsewhere` where the plan is for GPUs that this machine need not have."""
    if is_elsewhere or recipe.cluster.backend == "ray":
        return PlannedDevice(DEVICES[LIKELY_GPU], "a likely GPU; --device names another")
    if recipe.placement.device == "cpu":
        return PlannedDevice(measure_cpu(), "placement.device is cpu; measured on this machine just now")
    gpus = find_gpus()
    if gpus:
        known = next((device for name, device in DEVICES.items() if name in gpus[0].name), None)
        if known is not None:
            return PlannedDevice(known, f"this machine has {gpus[0].name}, by its data sheet")
        why = f"no data sheet is known of {gpus[0].name} here"
        return PlannedDevice(DEVICES[LIKELY_GPU], f"{why}; --device names one that is")
    if recipe.placement.device == "gpu":
        return PlannedDevice(
            DEVICES[LIKELY_GPU], "placement.device is gpu, and none is here; --device says which"
        )
    return PlannedDevice(
        measure_cpu(), "this machine has no GPU; measured just now. --device plans for another machine"
    )


def measure_cpu() -> Device:
    """All cores of this machine together, in float32: matrix products, and copies within its memory."""
    matrix = np.ones((_MATRIX, _MATRIX), np.float32)
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.empty(_COPIED_BYTES, np.uint8)
    product = np.empty_like(matrix)
    multiplied = min(_timed(lambda: np.matmul(matrix, matrix, out=product)) for _ in range(_TRIES))
    # Read once, written once.
    copied = min(_timed(lambda: np.copyto(target, source)) for _ in range(_TRIES))
    return Device(
        "CPU",
        teraflops=2 * _MATRIX**3 / multiplied / 1e12,
        terabytes_per_second=2 * _COPIED_BYTES / copied / 1e12,
        memory_gb=machine_memory().total / 1e9,
    )


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return max(time.perf_counter() - started, 1e-9)
