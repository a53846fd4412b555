"""The NVIDIA GPUs that this process may use, as nvidia-smi and CUDA_VISIBLE_DEVICES say. Imports no torch.

A GPU's number counts the visible ones from 0, in the order of CUDA_VISIBLE_DEVICES: the number that CUDA has
for it in a process with that variable. A GPU that is divided (MIG) is refused where it would be used.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDING = ("", "-1", "none", "void", "nodevfiles")
"""Entries of CUDA_VISIBLE_DEVICES that hide all that follow, in lower case; Slurm writes NoDevFiles."""
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Makes CUDA number the GPUs as nvidia-smi does. By default it puts the fastest first."""
QUERY = ("index", "uuid", "name", "memory.total", "mig.mode.current")
ASK_SECONDS = 60
"""For an answer of nvidia-smi: without the persistence daemon it wakes each GPU, which takes seconds."""
WAYS_OUT = f"Correct that, hide the GPUs with {VISIBLE}= (empty), or set placement.device to cpu."


@dataclass(frozen=True, slots=True)
class Gpu:
    """One that CUDA can use."""

    number: int
    """Number among the visible ones, from 0."""
    device: str
    """Name in CUDA_VISIBLE_DEVICES: its index in nvidia-smi."""
    name: str
    memory_mib: int | None = None
    """None where nvidia-smi does not say."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A GPU of this machine, visible or not."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None
    is_divided: bool


def find_gpus(*, devices: Path = Path("/dev")) -> tuple[Gpu, ...]:
    """The visible GPUs by number; none on a machine without a driver. Asks nvidia-smi once per process.

    Raises InputError where there are GPUs that nvidia-smi cannot list, and where CUDA_VISIBLE_DEVICES names
    one that does not exist: CUDA would leave it out, and all that follow, without a word.
    """
    return _find_gpus(os.environ.get(VISIBLE), os.environ.get("PATH", ""), devices)


@functools.cache
def _find_gpus(variable: str | None, path: str, devices: Path) -> tuple[Gpu, ...]:
    """`path` is where nvidia-smi is looked for."""
    entries = None if variable is None else _entries(variable)
    if entries == []:
        return ()
    found = _ask(path, devices)
    if not found:
        return ()
    named = found if entries is None else [_named(entry, found) for entry in entries]
    doubled = next((each.index for i, each in enumerate(named) if each in named[:i]), None)
    if doubled is not None:
        raise InputError(f"{VISIBLE} is {variable!r}: it names {doubled} twice. Name each GPU once.")
    if divided := [str(each.index) for each in named if each.is_divided]:
        raise InputError(
            f"GPU {', '.join(divided)} is divided into slices (MIG), which asyncrl does not use. Switch MIG "
            f"off, name other GPUs in {VISIBLE}, or set placement.device to cpu."
        )
    return tuple(
        Gpu(number, str(each.index), each.name, each.memory_mib) for number, each in enumerate(named)
    )


def hides_all() -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves no GPU visible, whatever the machine has."""
    variable = os.environ.get(VISIBLE)
    return variable is not None and not _entries(variable)


def free_gpu_bytes() -> dict[str, int]:
    """`Gpu.device` -> its free memory; empty where nvidia-smi does not say."""
    # Some devices answer "[N/A]".
    return {gpu: int(said) * 2**20 for gpu, said in _asked("memory.free").items() if said.isdecimal()}


def compute_capabilities() -> dict[str, tuple[int, int]]:
    """`Gpu.device` -> its compute capability, such as (9, 0); empty where nvidia-smi does not say."""
    parts = {gpu: said.split(".") for gpu, said in _asked("compute_cap").items()}
    return {
        gpu: (int(found[0]), int(found[1]))
        for gpu, found in parts.items()
        if len(found) == 2 and all(part.isdecimal() for part in found)
    }


def _asked(what: str) -> dict[str, str]:
    """`Gpu.device` -> what nvidia-smi says of it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    said = _run(program, "index", what)
    rows = [[cell.strip() for cell in line.split(",")] for line in said.stdout.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def _entries(variable: str) -> list[str]:
    """Entries that CUDA reads: up to the first entry that hides the rest."""
    read: list[str] = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.lower() in HIDING:
            break
        read.append(entry)
    return read


def _named(entry: str, found: Sequence[_Found]) -> _Found:
    """The GPU of an entry of CUDA_VISIBLE_DEVICES: an index, or the beginning of a UUID."""
    is_uuid = entry.startswith("GPU-")
    matching = [
        each for each in found if entry == str(each.index) or (is_uuid and each.uuid.startswith(entry))
    ]
    if len(matching) == 1:
        return matching[0]
    there = ", ".join(f"{each.index} ({each.uuid})" for each in found)
    raise InputError(
        f"{VISIBLE} names {entry}, which is {'no GPU' if not matching else 'several GPUs'} of this machine. "
        f"nvidia-smi lists {there}; slices (MIG) are not used. Correct {VISIBLE}."
    )


def _ask(path: str, devices: Path) -> list[_Found]:
    """All GPUs that nvidia-smi lists; none where it or its driver is missing and there is no device file."""
    files = sorted(devices.glob("nvidia[0-9]*"))
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        if files:
            raise InputError(
                f"this machine has an NVIDIA GPU ({files[0]}), but nvidia-smi, which comes with its driver, "
                f"is not on the PATH. {WAYS_OUT}"
            )
        return []
    said = _run(program, *QUERY)
    if said.returncode != 0:
        if "No devices were found" in said.stdout + said.stderr or not files:
            return []
        words = " ".join((said.stdout + said.stderr).split())[:300] or "no output"
        raise InputError(
            f"this machine has an NVIDIA GPU ({files[0]}), but nvidia-smi ended with exit code "
            f"{said.returncode}: {words}. {WAYS_OUT}"
        )
    return [_read_row(line) for line in said.stdout.splitlines() if line.strip()]


def _run(program: str, *fields: str) -> subprocess.CompletedProcess[str]:
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"nvidia-smi did not answer within {ASK_SECONDS} s: a GPU or its driver hangs. {WAYS_OUT}"
        ) from None


def _read_row(line: str) -> _Found:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(QUERY) or not cells[0].isdecimal():
        raise InputError(f"nvidia-smi printed {line!r}, expected {', '.join(QUERY)} of a GPU. {WAYS_OUT}")
    index, uuid, name, memory, mode = cells
    memory_mib = int(memory) if memory.isdecimal() else None
    return _Found(int(index), uuid, name, memory_mib, is_divided=mode == "Enabled")
