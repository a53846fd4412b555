"""This machine: processor, memory of its processes, mounted file systems. Imports no torch."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from asyncrl.system.gpus import find_gpus
from sandbox.cgroup import MOUNTED, OWN, Group, groups_around

CPUINFO = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Flags of a CPU, as Linux names them: instructions that multiply matrices of bfloat16."""
FLOAT16_FLAGS = ("avx512_fp16", "amx_fp16")
"""Flags of a CPU with instructions that multiply matrices of float16."""

KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Variables of a process that multiplies on a CPU. oneDNN and torch keep code for each shape of a product, by
default for 1,024 shapes each: 1.8 GB after 1,200 numbers of tokens in bfloat16; 0.15 GB and as fast so."""


def torch_is_cpu_build() -> bool:
    """Whether the installed torch was built without CUDA, by its version alone."""
    return _version_of_torch(importlib.metadata.version).endswith("+cpu")


@functools.cache
def _version_of_torch(read: Callable[[str], str]) -> str:
    """Read once: a search for a layout asks thousands of times."""
    return read("torch")


def has_gpu() -> bool:
    """Whether this process may use an NVIDIA GPU and its torch can, without importing torch. Raises
    InputError as `find_gpus` does."""
    return not torch_is_cpu_build() and bool(find_gpus())


def has_transformer_engine() -> bool:
    """Whether it is installed; it is not imported."""
    return importlib.util.find_spec("transformer_engine") is not None


def has_fused_weight_gradients() -> bool:
    """Whether apex's kernel for them is installed; it is not imported."""
    return importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None


def outward_address(host: str = "192.0.2.1") -> str:
    """The address of this machine on its way to `host`, or to other networks; 127.0.0.1 where there is no
    such way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel only chooses a route. The default is reserved for documentation.
            probe.connect((host, 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@functools.cache
def bfloat16_flag() -> str | None:
    """The first of BFLOAT16_FLAGS that this CPU has; None where it has none or does not say."""
    return next((flag for flag in BFLOAT16_FLAGS if flag in cpu_flags(CPUINFO)), None)


@functools.cache
def float16_flag() -> str | None:
    """The first of FLOAT16_FLAGS that this CPU has; None where it has none or does not say."""
    return next((flag for flag in FLOAT16_FLAGS if flag in cpu_flags(CPUINFO)), None)


def cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """Features of this CPU as Linux names them; none where it does not say."""
    return frozenset(flag for words in _cpu_lines(cpuinfo, "flags") for flag in words.split())


def cpu_name(cpuinfo: Path = CPUINFO) -> str | None:
    """None where Linux does not say it."""
    return next(_cpu_lines(cpuinfo, "model name"), None)


def _cpu_lines(cpuinfo: Path, key: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        lines = cpuinfo.read_text().splitlines()
        yield from (line.partition(":")[2].strip() for line in lines if line.startswith(key))


MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mount:
    point: Path
    kind: str
    """Such as ext4, nfs4 or fuse.sshfs."""
    source: str


def mount_of(folder: Path, mountinfo: Path = MOUNTINFO) -> Mount | None:
    """The mount that holds `folder`; None where the list cannot be read."""
    path = folder.resolve()
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:
        return None
    holding = [mount for line in lines if (mount := _read(line)) and path.is_relative_to(mount.point)]
    # Of two at one point the later one hides the other.
    return max(reversed(holding), key=lambda mount: len(mount.point.parts), default=None)


def _read(line: str) -> Mount | None:
    """A line of proc_pid_mountinfo(5): fields, optional ones, "-", then kind, source and options."""
    fields, _, rest = line.partition(" - ")
    words, behind = fields.split(), rest.split()
    if len(words) < 5 or len(behind) < 2:
        return None
    return Mount(Path(_unescaped(words[4])), behind[0], _unescaped(behind[1]))


def _unescaped(text: str) -> str:
    """Blanks and backslashes are octal there: \\040."""
    for code in (0o40, 0o11, 0o12, 0o134):
        text = text.replace(f"\\{code:03o}", chr(code))
    return text


# A process is killed at the limit of a control group however much the machine has free.
@dataclass(frozen=True, slots=True)
class MachineMemory:
    """In bytes."""

    total: int
    available: int
    """Includes what the kernel would take from caches of files."""
    is_bounded: bool
    """Whether a control group leaves less of it than the machine."""


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The use of the control group whose limit is nearest."""

    limit: int
    """In bytes."""
    used_share: float
    """Part of the limit in use, without caches of files that were not read lately."""
    stalled_seconds: float | None
    """Time in which some process of the group waited for memory, since the group was made: "some" of
    memory.pressure. None where the kernel does not count it, as under control groups of version 1."""


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the files of a control group."""

    limit: str
    used: str
    cached: str
    """Field of memory.stat: pages of files that were not read lately."""


_NAMES = {
    1: _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Names("memory.max", "memory.current", "inactive_file"),
}


def machine_memory(own: Path = OWN, mounted: Path = MOUNTED) -> MachineMemory:
    """Memory of this process. A control group without a limit, or one that cannot be read, bounds nothing."""
    machine = psutil.virtual_memory()
    bounds = list(_limited_groups(own, mounted))
    total = min([machine.total, *(limit for _, limit, _ in bounds)])
    left = min([machine.available, *(max(0, limit - used) for _, limit, used in bounds)])
    return MachineMemory(total, left, is_bounded=left < machine.available)


def group_memory(own: Path = OWN, mounted: Path = MOUNTED) -> GroupMemory | None:
    """None where no control group around this process has a limit below the machine's memory."""
    total = psutil.virtual_memory().total
    groups = [
        GroupMemory(limit, used / limit, _stalled_seconds(group))
        for group, limit, used in _limited_groups(own, mounted)
        if 0 < limit < total
    ]
    return max(groups, key=lambda group: group.used_share, default=None)


def _limited_groups(own: Path, mounted: Path) -> Iterator[tuple[Group, int, int]]:
    """Each group around this process that has a limit, with that and what is used, both in bytes."""
    for group in groups_around("memory", own, mounted):
        names = _NAMES[group.version]
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((group.folder / name).read_text()) for name in (names.limit, names.used))
            lines = (group.folder / "memory.stat").read_text().splitlines()
            cached = dict(line.split(" ", 1) for line in lines).get(names.cached, 0)
            yield group, limit, used - int(cached)


def _stalled_seconds(group: Group) -> float | None:
    """From a line such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, in microseconds."""
    with contextlib.suppress(OSError, ValueError):
        lines = (group.folder / "memory.pressure").read_text().splitlines()
        some = next((line for line in lines if line.startswith("some ")), "")
        return int(some.rpartition("total=")[2]) / 1e6
    return None
