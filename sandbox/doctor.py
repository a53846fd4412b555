"""Which layers of isolation this machine enforces, found by using them: one line per layer; and what is not
enforced here, by name and number."""

import asyncio
import os
from dataclasses import dataclass, replace

from sandbox import landlock
from sandbox.cgroup import available_cores
from sandbox.command import MEBIBYTE, Limits
from sandbox.jail import claim_user
from sandbox.pool import SandboxPool
from sandbox.result import Result, SandboxError, Status, Tier
from sandbox.settings import SandboxSettings

_ENABLE = {
    Tier.NAMESPACES: (
        "allow user namespaces: sysctl user.max_user_namespaces > 0, "
        "kernel.unprivileged_userns_clone=1 (Debian), "
        "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24.04); docker run --security-opt "
        "seccomp=unconfined --security-opt systempaths=unconfined; Linux 5.12 or later"
    ),
    Tier.LANDLOCK: "Linux 6.2 or later with landlock in CONFIG_LSM or the lsm= boot parameter",
}

# Each prints "held" when the layer stopped it.
_PROBES = {
    "network": (
        "import socket\ntry:\n socket.create_connection(('1.1.1.1', 80), 1)\nexcept OSError: print('held')"
    ),
    "host files": ("import os\n\ntry:\n os.listdir({home!r}); print('seen')\nexcept OSError: print('held')"),
    "host processes": ("import os\ntry:\n os.kill({pid}, 0); print('seen')\nexcept OSError: print('held')"),
    "system calls": (
        "import ctypes, ctypes.util\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print('held' if libc.ptrace(0, 0, 0, 0) == -1 and libc.unshare(0x10000000) == -1 else 'open')"
    ),
    "privileges": ("import os\ntry:\n os.setuid(0); print('open')\nexcept OSError: print('held')"),
    "address space": "try:\n bytearray(3 << 30); print('open')\nexcept MemoryError: print('held')",
    "processes": (
        "import os, signal, sys\n"
        "for _ in range(40):\n"
        " try:\n"
        "  if os.fork() == 0: signal.pause()\n"
        " except OSError: print('held'); break\n"
    ),
    "memory of all processes together": (
        # However slow the machine is: each has filled its own, or was ended, and those that have wait.
        "import os, time\n"
        "readers = []\n"
        "for _ in range(8):\n"
        " reader, writer = os.pipe()\n"
        " if os.fork() == 0:\n"
        "  data = b'x' * (100 << 20); os.write(writer, b'.'); time.sleep(60); os._exit(0)\n"
        " os.close(writer); readers.append(reader)\n"
        "filled = [os.read(reader, 1) for reader in readers]\n"
        "time.sleep(1.5); print('open' if all(filled) else 'held')"
    ),
    "disk": (
        "try:\n for i in range(9):\n  with open(f'f{{i}}', 'wb') as file: file.write(bytes(10 << 20))\n"
        "except OSError: print('held')"
    ),
}
_LIMITS = Limits(
    cpu_seconds=5, wall_seconds=20, memory_bytes=256 * MEBIBYTE, stack_bytes=8 * MEBIBYTE, processes=16,
    disk_bytes=32 * MEBIBYTE,
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One layer."""

    name: str
    holds: bool
    note: str = ""


def _judge(name: str, result: Result) -> Finding:
    stopped = result.status in (Status.MEMORY_LIMIT, Status.TIME_LIMIT)
    holds = stopped or result.stdout.strip() == b"held"
    return Finding(
        name, holds, "" if holds else f"{result.status.value}: {result.stdout[:80]!r} {result.detail}"
    )


def gaps(tier: Tier, controllers: tuple[str, ...], *, shares_user: bool) -> list[str]:
    """Limits that this tier does not enforce on a machine with these cgroup controllers.

    `shares_user`: the programs of all workers run as one user of the machine's."""
    if tier is Tier.UNSAFE:
        return ["everything but rlimits, wall time and output: the unsafe tier isolates nothing"]
    found = [
        "CPU time of processes whose parent ignores their end (SIGCHLD): sampled; of all others exact",
        "advisory read locks (fcntl) on the system's read-only files",
        "shares of the processor, caches and memory bandwidth between runs side by side",
    ]
    if "memory" not in controllers:
        found.append(
            "memory of all processes together: sampled every 50 ms, sockets and pipes counted as full"
        )
        if tier is Tier.NAMESPACES:
            found.append(
                "data in sockets that are themselves under way in a socket: about 100 MiB can hide there"
            )
    if tier is Tier.NAMESPACES:
        if shares_user:
            found.append("that a program reads back, and so loses, what it wrote to its own output")
        return found
    found += [
        "disk: sampled; what is written between two samples stays on the host's disk until the run has ended",
        "a view of its own of /usr and the interpreter's packages: the host's own files are read there",
    ]
    if shares_user:
        found.append(
            "a number of processes for each run: the kernel counts the user's; a fork bomb can keep the runs "
            "of other workers from starting processes until a sample ends it"
        )
    return found


async def examine(settings: SandboxSettings) -> tuple[Tier | None, list[Finding], list[str]]:
    """The tier that runs would get, its layers, by trying, and what is not enforced here."""
    settings = replace(settings, workers=1)
    findings = []
    async with SandboxPool(settings) as sandbox:
        await sandbox.start()
        for tier, reason in sandbox.reasons.items():
            enable = "" if tier in sandbox.out_of_reach else f". To enable: {_ENABLE.get(tier, '')}"
            findings.append(Finding(f"tier {tier.value}", False, reason + enable))
        if sandbox.tier is None:
            return None, findings, []
        findings.append(Finding(f"tier {sandbox.tier.value}", True))
        assert sandbox.python is not None
        findings.append(Finding(f"interpreter {sandbox.python.executable}", True, sandbox.python_note))
        for controller in ("memory", "pids"):
            holds = controller in sandbox.cgroup_controllers
            note = (
                "" if holds else "needs root or a delegated cgroup; sums are sampled, or bounded per process"
            )
            findings.append(Finding(f"cgroup {controller}", holds, note))
        version = landlock.abi()
        if sandbox.tier is Tier.LANDLOCK:
            scoped = version >= landlock.SIGNALS_ABI
            note = f"version {version}" + (
                "" if scoped else "; seccomp keeps signals to the process itself instead"
            )
            findings.append(Finding("landlock", True, note))
        home = os.path.expanduser("~")
        for name, template in _PROBES.items():
            source = template.format(home=home, pid=os.getpid())
            command = await sandbox.build(source, lang="python", limits=_LIMITS)
            assert not isinstance(command, Result)
            try:
                findings.append(_judge(name, await sandbox.run(command)))
            except SandboxError as error:
                findings.append(Finding(name, False, f"the sandbox failed: {error}"))
        _, claimed = claim_user()
        if claimed is not None:
            claimed.close()
        missing = gaps(sandbox.tier, sandbox.cgroup_controllers, shares_user=claimed is None)
        return sandbox.tier, findings, missing


def report(settings: SandboxSettings) -> tuple[Tier | None, list[str]]:
    """The lines that `asyncrl sandbox doctor` prints."""
    tier, findings, missing = asyncio.run(examine(settings))
    lines = [f"machine: {os.uname().machine}, Linux {os.uname().release}, uid {os.getuid()}, "
             f"{available_cores()} cores"]  # fmt: skip
    for finding in findings:
        mark = "yes" if finding.holds else "NO "
        lines.append(f"{mark}  {finding.name}" + (f" ({finding.note})" if finding.note else ""))
    lines += [f"NO   not enforced here: {gap}" for gap in missing]
    failed = sum(not finding.holds for finding in findings)
    lines.append(f"{failed} layers failed or are missing, {len(missing)} things are not enforced here.")
    if tier is None:
        lines.append("Untrusted programs are refused on this machine.")
    return tier, lines
