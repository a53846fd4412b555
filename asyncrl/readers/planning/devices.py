"""GPUs that a plan may be for, by their data sheets: the one asked for, else the one of this machine."""

from dataclasses import dataclass

from asyncrl.errors import InputError, did_you_mean
from asyncrl.model.flops import PEAK_TERAFLOPS
from asyncrl.recipe import Recipe
from asyncrl.system.gpus import find_gpus

LIKELY_GPU = "H100"


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    teraflops: float
    """Dense bfloat16."""
    terabytes_per_second: float
    """Bandwidth of its memory."""
    memory_gb: float
    """10^9 bytes."""


GPUS = {
    name: Device(name, PEAK_TERAFLOPS[name], terabytes_per_second, memory_gb)
    for name, terabytes_per_second, memory_gb in (
        ("B200", 8.0, 180.0),
        ("H200", 4.8, 141.0),
        ("H100", 3.35, 80.0),
        ("A100", 2.0, 80.0),
        ("L40S", 0.86, 48.0),
        ("A10", 0.6, 24.0),
        ("RTX 4090", 1.0, 24.0),
    )
}


def find_device(recipe: Recipe, *, name: str | None, is_elsewhere: bool) -> tuple[Device, str]:
    """The device and a clause: why this one. `is_elsewhere` where the plan is for GPUs that this machine need
    not have. Raises InputError for a `name` without a data sheet."""
    if name is not None:
        if name not in GPUS:
            raise InputError(
                f"--device {name} is unknown. Known: {', '.join(GPUS)}.{did_you_mean(name, GPUS)}"
            )
        return GPUS[name], f"--device {name}"
    if is_elsewhere or recipe.cluster.backend == "ray" or not (gpus := find_gpus()):
        return GPUS[LIKELY_GPU], "a likely GPU; --device names another"
    known = next((device for name, device in GPUS.items() if name in gpus[0].name), None)
    if known is not None:
        return known, f"this machine has {gpus[0].name}"
    return GPUS[LIKELY_GPU], f"no data sheet is known of {gpus[0].name}; --device names one that is"
