"""Processor, memory, control groups, shared memory, limits of a process, clocks."""

import ctypes
import os
import platform
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from asyncrl.launch.doctor.probe import Finding, broken, lost, ok
from asyncrl.system.machine import BFLOAT16_FLAGS, CPUINFO, MachineMemory, cpu_flags, cpu_name, machine_memory
from sandbox.cgroup import MOUNTED, OWN, available_cores

SHARED_MEMORY = Path("/dev/shm")
AMX_FLAGS = ("amx_bf16", "amx_tile", "amx_int8")
FEWEST_CORES = 2
SMALLEST_GIB = 4.0
"""Free memory that the smallest recipe needs."""
SHARED_GIB = 1.0
"""Docker gives 64 MiB unless it is told otherwise."""
FEWEST_FILES = 4096
LEAST_FILES = 256
MANY_FILES = 65536


def cpu(cpuinfo: Path = CPUINFO) -> Iterator[Finding]:
    """Instructions that decide which dtype a CPU computes in."""
    flags, name = cpu_flags(cpuinfo), cpu_name(cpuinfo) or "a processor"
    if not flags:
        yield lost(
            f"{name} ({platform.machine()}), whose features cannot be read",
            "model.dtype auto computes in float32 on the CPU.",
            "Nothing to do for runs on GPUs; the CPU engines are made for x86-64 and Linux.",
        )
        return
    amx = [flag for flag in AMX_FLAGS if flag in flags]
    bfloat16 = [flag for flag in BFLOAT16_FLAGS if flag in flags]
    if not bfloat16:
        yield lost(
            f"{name}, neither avx512_bf16 nor AMX",
            "On the CPU model.dtype auto computes in float32: models above 50 M parameters take about three "
            "times as long, and twice the memory.",
            "Train them on a CPU with avx512_bf16 (AMD Zen 4, Intel Cooper Lake or Sapphire Rapids) or on a "
            "GPU; small models lose nothing.",
        )
        return
    found = f"{name}, {', '.join(dict.fromkeys([*bfloat16, *amx]))}"
    yield ok(f"{found}: bfloat16 for models above 50 M parameters on the CPU (model.dtype auto)")
    if "amx_bf16" not in amx and amx:
        yield lost(
            f"{', '.join(amx)} without amx_bf16",
            "Its tiles multiply no bfloat16: products are those of avx512_bf16.",
            "Nothing to do, unless a hypervisor hides amx_bf16: give the machine the host's CPU model.",
            what="amx",
        )


def cores(
    *, available: Callable[[], int] = available_cores, total: Callable[[], int | None] = os.cpu_count
) -> Finding:
    """Cores that this process may use, affinity and quotas of control groups included."""
    num, there = available(), total() or available()
    found = f"{num} of {there}" if num < there else str(num)
    why = " (affinity, or the CPU quota of a control group)" if num < there else ""
    if num < FEWEST_CORES:
        return lost(
            f"{found}{why}",
            "Server and trainer share one core on a CPU, so that neither hides the time of the other.",
            "Give the process two cores or more (docker run --cpus, taskset, Slurm's --cpus-per-task).",
        )
    return ok(f"{found}{why}")


def memory(measure: Callable[[], MachineMemory] = machine_memory) -> Finding:
    """Free memory, or what a control group leaves of it."""
    measured = measure()
    free, total = measured.available / 2**30, measured.total / 2**30
    where = ", bounded by a control group" if measured.is_bounded else ""
    found = f"{free:.1f} GiB free of {total:.1f} GiB{where}"
    if free < SMALLEST_GIB:
        return lost(
            found,
            f"The smallest recipes need {SMALLEST_GIB:g} GiB; `asyncrl check` refuses what does not fit.",
            "End other programs, or raise the limit (docker run --memory, the Slurm job's --mem).",
        )
    return ok(found)


def control_groups(own: Path = OWN, mounted: Path = MOUNTED) -> Finding:
    """Whether the limits of a container can be read at all, and as which version."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        lines = []
    unified = (mounted / "cgroup.controllers").is_file()
    if unified and any(not names for _, names, _ in lines):
        listed = (mounted / "cgroup.controllers").read_text().split()
        return ok(f"version 2 at {mounted}: {', '.join(listed) or 'no controllers'}")
    elif any("memory" in names.split(",") for _, names, _ in lines) and (mounted / "memory").is_dir():
        return ok(f"version 1 at {mounted}: limits of memory and CPU are read")
    else:
        return lost(
            f"none that can be read ({own}, {mounted})",
            "If a container bounds memory or CPU time, asyncrl does not know: a run may be killed at a limit "
            "that `asyncrl check` did not count with, and the sandbox samples memory in place of a limit.",
            "Mount /sys/fs/cgroup (docker does by default), or set memory_gib in recipes.",
        )


def shared_memory(
    folder: Path = SHARED_MEMORY,
    *,
    size_of: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).total,
    may_write: Callable[[Path], bool] = lambda folder: os.access(folder, os.W_OK),
) -> Finding:
    """The size of /dev/shm, by which processes of NCCL, torch and SGLang share memory."""
    fix = "docker run --ipc=host or --shm-size=16g; Kubernetes: an emptyDir of medium Memory at /dev/shm."
    if not folder.is_dir() or not may_write(folder):
        return broken(
            "missing" if not folder.is_dir() else "cannot be written",
            "Semaphores and shared tensors of Python, torch and NCCL cannot be made.",
            f"Mount a tmpfs there. {fix}",
        )
    size = size_of(folder)
    found = f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
    if size < SHARED_GIB * 2**30:
        return lost(
            found,
            "Ranks and tensor-parallel servers of several GPUs share memory there: they would end with a bus "
            "error, or NCCL with an unhandled system error.",
            fix,
        )
    return ok(found)


def file_descriptors(
    limits: Callable[[], tuple[int, int]] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
) -> Finding:
    """The soft limit counts: no process of a run raises it."""
    soft, hard = limits()
    if soft == resource.RLIM_INFINITY or soft >= FEWEST_FILES:
        return ok("unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,} per process")
    has_limit = hard != resource.RLIM_INFINITY
    found = f"{soft:,} per process (the hard limit is {f'{hard:,}' if has_limit else 'none'})"
    most = min(hard, MANY_FILES) if has_limit else MANY_FILES
    fix = f"ulimit -n {most} in the shell that starts the run, or LimitNOFILE= of its unit."
    if soft < LEAST_FILES:
        consequence = "Servers, journal and verifiers cannot open what they need: runs end with EMFILE."
        return broken(found, consequence, fix)
    return lost(
        found,
        "Each trajectory in flight is a connection of the controller and of a server: more than about "
        f"{soft // 2:,} at once end with EMFILE (too many open files).",
        fix,
    )


WATCHED_SECONDS = 0.2
JUMP_SECONDS = 0.1
"""Difference of both clocks over WATCHED_SECONDS that is a jump, not a correction."""
OLDEST = 2026
"""A wall clock before this year is wrong."""
_TIMEX_BYTES = 256
"""More than struct timex has on any Linux."""
_UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""


def _kernel_keeps_time() -> bool | None:
    """Whether the kernel says that a program (as chrony) keeps its clock right; None: it does not say."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # All zero: modes 0 only reads.
        state = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED


@dataclass(frozen=True, slots=True)
class Clocks:
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    keeps_time: Callable[[], bool | None] = _kernel_keeps_time


def clock(clocks: Clocks = Clocks()) -> Finding:
    """Watches both clocks for a moment."""
    began, began_wall = clocks.monotonic(), clocks.wall()
    clocks.sleep(WATCHED_SECONDS)
    passed, passed_wall = clocks.monotonic() - began, clocks.wall() - began_wall
    now = datetime.fromtimestamp(clocks.wall(), UTC)
    if passed <= 0:
        return broken(
            f"the monotonic clock moved by {passed:g} s in {WATCHED_SECONDS:g} s",
            "Time limits of servers, verifiers and ranks never pass.",
            "Restart the machine; in a virtual machine choose another clock source (kvm-clock, tsc).",
        )
    if abs(passed_wall - passed) > JUMP_SECONDS:
        return lost(
            f"the wall clock moved by {passed_wall:.2f} s in {passed:.2f} s",
            "Times in logs, metrics and reports are wrong; time limits, which use the monotonic clock, hold.",
            "Let chrony or systemd-timesyncd slew the clock in place of setting it.",
        )
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now.year < OLDEST:
        return lost(
            shown,
            "Certificates are not valid yet on that day: nothing is fetched from a hub by HTTPS.",
            "Set the clock (timedatectl set-ntp true).",
        )
    keeps = clocks.keeps_time()
    if keeps is False:
        return lost(
            f"{shown}; nothing keeps it right (the kernel calls it unsynchronised)",
            "Times of several machines cannot be compared; a run on one machine loses nothing.",
            "Start chrony or systemd-timesyncd on the host.",
        )
    return ok(f"{shown}, {'kept right' if keeps else 'no jump; whether it is kept right is unknown'}")
