"""GPUs, their driver, CUDA and NCCL. torch is asked in a process of its own: it may hang or crash there."""

import importlib.metadata
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncrl.errors import InputError
from asyncrl.launch.doctor.probe import Finding, broken, lost, ok, output_of
from asyncrl.serving.engine.hooks.cuda_toolkit import missing_part
from asyncrl.system.gpus import Gpu, find_gpus, free_gpu_bytes, hides_all
from asyncrl.system.machine import DRIVER, torch_is_cpu_build

TORCH_SECONDS = 90.0
"""For an import of torch and a first context on each GPU, on a busy machine."""
OLDEST_DRIVER = 580
"""First branch for CUDA 13.0, which gpu.lock is for."""
OLDEST_CAPABILITY = (8, 0)
"""Ampere: the first with products of bfloat16, and the oldest that FlashAttention computes on."""
BUSY_SHARE = 0.1
"""Share of a GPU's memory in use from which on it counts as busy."""
SET_UP_GPU = "Make a fresh environment: rm -rf .venv, then make setup GPU=1."
_ASK_TORCH = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps({
    "cuda": torch.version.cuda,
    "is_available": torch.cuda.is_available(),
    "count": count,
    "capabilities": [torch.cuda.get_device_capability(i) for i in range(count)],
    "nccl": list(torch.cuda.nccl.version()) if count else None,
    "peers": [torch.cuda.can_device_access_peer(i, i + 1) for i in range(count - 1)],
}))
"""


def gpus(
    find: Callable[[], Sequence[Gpu]] = find_gpus,
    *,
    is_cpu_build: Callable[[], bool] = torch_is_cpu_build,
    hides: Callable[[], bool] = hides_all,
    free: Callable[[], dict[str, int]] = free_gpu_bytes,
) -> Iterator[Finding]:
    """The visible ones, whether the installed torch can use them, and whether they are free."""
    version = importlib.metadata.version("torch")
    try:
        found = find()
    except InputError as error:
        what, _, way = str(error).partition(". ")
        yield broken(what, "No run starts on this machine's GPUs.", way or "Correct that.")
        return
    if not found:
        yield _without(version, is_cpu_build=is_cpu_build(), hides=hides())
        return
    names = ", ".join(dict.fromkeys(gpu.name for gpu in found))
    sizes = {gpu.memory_mib for gpu in found if gpu.memory_mib is not None}
    memory = "" if not sizes else f", {min(sizes) / 1024:.0f} GiB each"
    shown = f"{len(found)} visible: {names}{memory}"
    if is_cpu_build():
        yield broken(
            f"{shown}; torch {version} is a build for CPUs",
            "Runs are refused unless placement.device is cpu: all of them would compute on the CPU.",
            SET_UP_GPU,
        )
        return
    yield ok(f"{shown}, torch {version}")
    left = free()
    for gpu in found:
        total = None if gpu.memory_mib is None else gpu.memory_mib * 2**20
        if total and gpu.device in left and left[gpu.device] < (1 - BUSY_SHARE) * total:
            yield lost(
                f"{left[gpu.device] / 1e9:.1f} GB free of {total / 1e9:.1f} GB",
                "Other programs hold memory there: a server or rank may find too little.",
                "nvidia-smi names them; end them, or leave this GPU out of CUDA_VISIBLE_DEVICES.",
                what=f"gpu {gpu.number}",
            )


def _without(version: str, *, is_cpu_build: bool, hides: bool) -> Finding:
    if is_cpu_build:
        return ok(f"none; torch {version} computes on the CPU")
    found = "CUDA_VISIBLE_DEVICES hides all of them" if hides else "none that nvidia-smi lists"
    return lost(
        f"{found}; torch {version} is a build for GPUs",
        "Everything computes on the CPU, with the larger packages; servers on the CPU are tested with the "
        "build for CPUs alone.",
        "Unset CUDA_VISIBLE_DEVICES."
        if hides
        else "Start the container with GPUs (docker run --gpus all), or make an environment for CPUs: rm -rf "
        ".venv, then make setup.",
    )


def ask_torch() -> dict[str, Any]:
    """The answer of torch about CUDA. Raises InputError where there is none, TimeoutExpired if it hangs."""
    done = output_of([sys.executable, "-P", "-c", _ASK_TORCH], seconds=TORCH_SECONDS)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(f"torch ended with exit code {done.returncode}: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def driver_version() -> str | None:
    """Such as "580.65.06"; None where no driver is loaded."""
    text = DRIVER.read_text() if DRIVER.is_file() else ""
    found = re.search(r"(\d{3,}\.\d+(?:\.\d+)?)", text)
    return None if found is None else found[1]


def cuda(
    find: Callable[[], Sequence[Gpu]] = find_gpus,
    *,
    is_cpu_build: Callable[[], bool] = torch_is_cpu_build,
    driver: Callable[[], str | None] = driver_version,
    ask: Callable[[], dict[str, Any]] = ask_torch,
    compilers: Callable[[], str | None] = missing_part,
) -> Iterator[Finding]:
    """Driver, CUDA, compilers and NCCL of a machine with GPUs; nothing to look at on another one."""
    try:
        found = find()
    except InputError:
        # `gpus` says it.
        found = ()
    if not found:
        yield ok("not needed: runs compute on the CPU, ranks talk by gloo")
        return
    yield _driver(driver())
    if (missing := compilers()) is not None:
        fix = missing.rpartition(": ")[2].rstrip(".")
        yield broken(
            missing,
            "SGLang loads and compiles kernels on a GPU as it starts: no server would start.",
            f"{fix[:1].upper()}{fix[1:]}.",
            what="compilers",
        )
    else:
        yield ok("g++, Python's headers, nvcc and libnuma", what="compilers")
    if not is_cpu_build():
        yield from _torch(ask(), len(found))


def _driver(version: str | None) -> Finding:
    if version is None:
        return lost(
            "its version cannot be read",
            f"Whether it is {OLDEST_DRIVER} or newer, as CUDA 13.0 needs, is unknown.",
            "nvidia-smi prints it in its first line.",
            what="driver",
        )
    elif int(version.partition(".")[0]) < OLDEST_DRIVER:
        return broken(
            version,
            f"CUDA 13.0, which gpu.lock is for, needs {OLDEST_DRIVER} or newer: torch sees no GPU.",
            "Update the driver of the host; a container has the host's.",
            what="driver",
        )
    else:
        return ok(version, what="driver")


def _torch(said: dict[str, Any], num_gpus: int) -> Iterator[Finding]:
    if not said["is_available"]:
        yield broken(
            f"torch is built for CUDA {said['cuda']}, and cannot use it here",
            "Every process on a GPU ends as it starts.",
            "Update the driver, or make the environment again with make setup GPU=1.",
        )
        return
    oldest = min(tuple(each) for each in said["capabilities"])
    found = f"CUDA {said['cuda']}, {said['count']} device(s), capability {oldest[0]}.{oldest[1]} or newer"
    if said["count"] != num_gpus:
        yield broken(
            f"torch sees {said['count']} device(s), nvidia-smi {num_gpus}",
            "Ranks on those that torch does not see end as they start.",
            "nvidia-smi -q shows errors of a GPU; leave it out of CUDA_VISIBLE_DEVICES.",
        )
    elif oldest < OLDEST_CAPABILITY:
        yield lost(
            found,
            "GPUs before capability 8.0 (Ampere) multiply no bfloat16: FlashAttention refuses them, and "
            "bfloat16 is emulated.",
            "Name newer GPUs in CUDA_VISIBLE_DEVICES, or set model.dtype to float16.",
        )
    else:
        yield ok(found)
    yield _nccl(said)


def _nccl(said: dict[str, Any]) -> Finding:
    if not said["nccl"]:
        return broken(
            "torch has none", "Ranks of several GPUs cannot talk to each other.", SET_UP_GPU, what="nccl"
        )
    version = ".".join(map(str, said["nccl"]))
    if said["peers"] and not all(said["peers"]):
        return lost(
            f"{version}; neighbouring GPUs cannot reach each other's memory",
            "Messages between ranks go through host memory: tensor parallelism and publishing are slower.",
            "nvidia-smi topo -p2p r shows which; in a virtual machine switch off ACS or IOMMU for them.",
            what="nccl",
        )
    else:
        peers = ", GPUs reach each other's memory" if said["peers"] else ""
        return ok(f"{version}{peers}", what="nccl")
