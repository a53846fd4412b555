"""The NVIDIA GPUs that this process may use, as nvidia-smi and CUDA_VISIBLE_DEVICES say. Imports no torch.

A GPU's number counts the visible ones from 0, in the order of CUDA_VISIBLE_DEVICES: the number that CUDA has
for it in a process with that variable. A GPU that is divided (MIG) counts as its slices.
"""

import functools
import os
import re
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
_SLICE = re.compile(r"\s+MIG\s+(\S+)\s+Device\s+\d+:\s+\(UUID:\s*(MIG-[^)\s]+)\)")
_WHOLE = re.compile(r"GPU\s+(\d+):")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One that CUDA can use: a whole GPU, or a slice of a divided one."""

    number: int
    """Number among the visible ones, from 0."""
    device: str
    """Name in CUDA_VISIBLE_DEVICES: its index in nvidia-smi, or the UUID of a slice."""
    name: str
    memory_mib: int | None = None
    """None where nvidia-smi does not say."""
    is_slice: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """A GPU of this machine, visible or not."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None
    slices: tuple[tuple[str, str], ...] = ()
    """(profile, UUID) of each, where the GPU is divided."""


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
    if entries is None:
        return _numbered([gpu for each in found for gpu in _parts(each)])
    named = [_named(entry, found) for entry in entries]
    doubled = next((gpu.device for i, gpu in enumerate(named) if gpu in named[:i]), None)
    if doubled is not None:
        raise InputError(f"{VISIBLE} is {variable!r}: it names {doubled} twice. Name each GPU once.")
    return _numbered(named)


def hides_all() -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves no GPU visible, whatever the machine has."""
    variable = os.environ.get(VISIBLE)
    return variable is not None and not _entries(variable)


def free_gpu_bytes() -> dict[str, int]:
    """`Gpu.device` -> its free memory, of whole GPUs; empty where nvidia-smi does not say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    said = _run([program, "--query-gpu=index,memory.free", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.split(",")] for line in said.stdout.splitlines()]
    # Some devices answer "[N/A]".
    return {row[0]: int(row[1]) * 2**20 for row in rows if len(row) == 2 and row[1].isdecimal()}


def _entries(variable: str) -> list[str]:
    """Entries that CUDA reads: up to the first entry that hides the rest."""
    read: list[str] = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.lower() in HIDING:
            break
        read.append(entry)
    return read


def _numbered(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(number, gpu.device, gpu.name, gpu.memory_mib, gpu.is_slice) for number, gpu in enumerate(gpus)
    )


def _parts(found: _Found) -> list[Gpu]:
    """Parts that CUDA can use: its slices, or the whole."""
    if found.slices:
        return [Gpu(0, uuid, f"{found.name} MIG {profile}", is_slice=True) for profile, uuid in found.slices]
    return [Gpu(0, str(found.index), found.name, found.memory_mib)]


def _named(entry: str, found: Sequence[_Found]) -> Gpu:
    """The GPU of an entry of CUDA_VISIBLE_DEVICES: an index, the beginning of a UUID, or a slice's UUID."""
    if entry.startswith("MIG-"):
        matching = [part for each in found for part in _parts(each) if part.device.startswith(entry)]
    else:
        # Of a divided GPU that is named as a whole, CUDA takes the first slice.
        matching = [
            _parts(each)[0] for each in found if entry == str(each.index) or _begins(each.uuid, entry)
        ]
    if len(matching) == 1:
        return matching[0]
    there = ", ".join(f"{each.index} ({each.uuid})" for each in found)
    slices = ", ".join(uuid for each in found for _, uuid in each.slices)
    raise InputError(
        f"{VISIBLE} names {entry}, which is {'no GPU' if not matching else 'several GPUs'} of this machine. "
        f"nvidia-smi lists {there}{'; slices ' + slices if slices else ''}. Correct {VISIBLE}."
    )


def _begins(uuid: str, entry: str) -> bool:
    return entry.startswith("GPU-") and uuid.startswith(entry)


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
    said = _run([program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"])
    if said.returncode != 0:
        if "No devices were found" in said.stdout + said.stderr or not files:
            return []
        raise InputError(
            f"this machine has an NVIDIA GPU ({files[0]}), but nvidia-smi ended with exit code "
            f"{said.returncode}: {_one_line(said.stdout + said.stderr)}. {WAYS_OUT}"
        )
    found = [_read_row(line) for line in said.stdout.splitlines() if line.strip()]
    if not any(is_divided for _, is_divided in found):
        return [gpu for gpu, _ in found]
    slices = _read_slices(_run([program, "-L"]).stdout)
    # A GPU that is to be divided and is not yet offers nothing to CUDA.
    return [
        _Found(gpu.index, gpu.uuid, gpu.name, gpu.memory_mib, tuple(slices.get(gpu.index, ())))
        for gpu, is_divided in found
        if not is_divided or gpu.index in slices
    ]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"nvidia-smi did not answer within {ASK_SECONDS} s: a GPU or its driver hangs. {WAYS_OUT}"
        ) from None


def _read_row(line: str) -> tuple[_Found, bool]:
    """A GPU, and whether it is divided."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(QUERY) or not cells[0].isdecimal():
        raise InputError(f"nvidia-smi printed {line!r}, expected {', '.join(QUERY)} of a GPU. {WAYS_OUT}")
    index, uuid, name, memory, mode = cells
    return _Found(int(index), uuid, name, int(memory) if memory.isdecimal() else None), mode == "Enabled"


def _read_slices(listing: str) -> dict[int, list[tuple[str, str]]]:
    """Index of a GPU -> (profile, UUID) of its slices, from `nvidia-smi -L`."""
    slices: dict[int, list[tuple[str, str]]] = {}
    index = -1
    for line in listing.splitlines():
        if whole := _WHOLE.match(line):
            index = int(whole[1])
        elif part := _SLICE.match(line):
            slices.setdefault(index, []).append((part[1], part[2]))
    return slices


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300] or "no output"
