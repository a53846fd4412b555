"""This machine: processor, memory of its processes, mounted file systems; the packages and the commit that a
run runs from, and how they differ from recorded ones. Imports no torch."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import platform
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from asyncrl.system.gpus import find_gpus
from sandbox.cgroup import MOUNTED, OWN, Group, available_cores, groups_around

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
    """The address of this machine on its way to `host`, or to other networks; 127.0.0.1 where none is."""
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


ENGINES = ("torch", "megatron-core", "sglang", "transformers")
"""Packages that compute what a run trains."""
DRIVER = Path("/proc/driver/nvidia/version")
GIT_SECONDS = 10.0


class Environment(BaseModel):
    """Environment of one process, on one machine."""

    model_config = ConfigDict(extra="forbid")

    asyncrl: str
    """Its version."""
    commit: str | None
    """Commit of the git checkout that asyncrl runs from; null where it runs from no checkout."""
    has_local_changes: bool | None
    """Whether tracked files differ from that commit."""
    python: str
    platform: str
    cpu: str
    num_cores: int
    """Cores that this process may use."""
    memory_gib: float
    gpus: list[str]
    """Names of those that the run uses; empty on a CPU."""
    gpu_driver: str | None
    packages: dict[str, str]
    """Name -> version of every installed distribution, as pip freeze lists them."""


def describe_environment(gpus: list[str]) -> Environment:
    """Describes this process; `gpus` are the names of those that its run uses. About 0.1 s of work."""
    commit, is_changed = _checkout(Path(__file__).resolve().parents[2])
    return Environment(
        asyncrl=importlib.metadata.version("asyncrl"),
        commit=commit,
        has_local_changes=is_changed,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_name() or platform.machine(),
        num_cores=available_cores(),
        memory_gib=round(machine_memory().total / 2**30, 1),
        gpus=gpus,
        gpu_driver=DRIVER.read_text().partition("\n")[0] if DRIVER.is_file() else None,
        packages=_packages(),
    )


def differences(recorded: Environment, now: Environment) -> list[str]:
    """A sentence for each field and each package that is not as recorded."""
    found = [
        f"{name}: recorded {before!r}, here {after!r}"
        for name in Environment.model_fields
        if name != "packages" and (before := getattr(recorded, name)) != (after := getattr(now, name))
    ]
    for name in sorted({*recorded.packages, *now.packages}):
        before, after = recorded.packages.get(name), now.packages.get(name)
        if before != after:
            found.append(f"package {name}: recorded {before or 'none'}, here {after or 'none'}")
    return found


def changed_engines(before: Environment, now: Environment) -> str | None:
    """A sentence for a person where what computes a run has another version than in its last start."""
    old, new = ({"python": each.python, **each.packages} for each in (before, now))
    found = [
        f"{name} {new.get(name, 'none')} (before: {old.get(name, 'none')})"
        for name in ("python", *ENGINES)
        if old.get(name) != new.get(name)
    ]
    if not found:
        return None
    return (
        f"the run resumes under {', '.join(found)}: its numbers may differ from those of its earlier steps "
        f"by more than noise"
    )


def _packages() -> dict[str, str]:
    metadata = [dist.metadata for dist in importlib.metadata.distributions()]
    # What a broken installation leaves behind has neither.
    found = {str(each["Name"]): str(each["Version"]) for each in metadata if each["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _checkout(root: Path) -> tuple[str | None, bool | None]:
    """(commit, whether it has local changes); (None, None) outside of a checkout or without git."""
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit.strip(), None if changed is None else bool(changed.strip())


def _git(root: Path, *words: str) -> str | None:
    """Output of git; None where it is not installed, refuses, or takes too long."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
