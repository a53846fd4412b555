"""Landlock: a process gives up all files but a list, and connections and signals out of its domain.

Used where namespaces cannot be had. What the kernel's landlock version cannot restrict is reported by `abi`,
and left to seccomp (network, signals)."""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from sandbox import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_BY_ABI = {3: (1 << 15) - 1, 5: (1 << 16) - 1}
_TRUNCATE, _REFER, _IOCTL_DEV = 1 << 14, 1 << 13, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 2
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1

LEAST_ABI = 3
"""The first version that restricts truncation: below it, a program could empty the caller's own files."""
SIGNALS_ABI = 6
"""From this version on, signals stay inside the domain."""


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scoped")]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def abi() -> int:
    """The kernel's landlock version; 0 when there is none."""
    try:
        arguments = (None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))
        return kernel.syscall("landlock_create_ruleset", *arguments)
    except OSError:
        return 0


def _handled_files(version: int) -> int:
    return next(_ALL_BY_ABI[at] for at in sorted(_ALL_BY_ABI, reverse=True) if at <= version)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _FILE_RIGHTS
        rule = _PathBeneath(access, descriptor)
        kind = ctypes.c_int(_RULE_PATH_BENEATH)
        pointer = ctypes.byref(rule)
        kernel.syscall("landlock_add_rule", ctypes.c_int(ruleset), kind, pointer, ctypes.c_uint32(0))
    finally:
        os.close(descriptor)


def restrict(*, readable: list[str], writable: list[str], devices: list[str]) -> None:
    """Restricts the caller for good: read and execute below `readable`, everything below `writable`.

    Raises OSError where the kernel's landlock is older than LEAST_ABI."""
    version = _version()
    files = _handled_files(version)
    network = _BIND_TCP | _CONNECT_TCP if version >= 4 else 0
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if version >= SIGNALS_ABI else 0
    rules = [(path, _EXECUTE | _READ_FILE | _READ_DIR) for path in readable]
    rules += [(path, files) for path in writable]
    rules += [(path, (_READ_FILE | _WRITE_FILE) & files) for path in devices]
    _restrict(version, _Ruleset(files, network, scoped), rules)


def hide(paths: Iterable[Path]) -> None:
    """Takes files and folders from the caller for good, and all access to processes that it does not start;
    the network stays.

    Landlock can only allow, so that what lies beside the paths is allowed: entries that are made later in one
    of the folders above them are taken, too. Names can be listed everywhere. Raises OSError where the
    kernel's landlock is older than LEAST_ABI."""
    version = _version()
    files = _handled_files(version)
    hidden = {path.resolve() for path in paths}
    above = {parent for path in hidden for parent in path.parents}
    # Where no path is hidden, only processes are.
    rules = [("/", _READ_DIR if hidden else files)]
    for folder in above - hidden:
        with contextlib.suppress(OSError):
            # A link is allowed by what it leads to.
            beside = [entry for entry in os.scandir(folder) if not entry.is_symlink()]
            rules += [
                (entry.path, files) for entry in beside if Path(entry.path) not in hidden | above
            ]  # fmt: skip
    kernel.no_new_privileges()
    # With one of these, root would read the variables of every process in spite of landlock.
    kernel.drop_capabilities((kernel.CAP_SYS_PTRACE, kernel.CAP_SYS_ADMIN, kernel.CAP_PERFMON))
    _restrict(version, _Ruleset(files, 0, _SCOPE_SIGNAL if version >= SIGNALS_ABI else 0), rules)


def _version() -> int:
    version = abi()
    if version < LEAST_ABI:
        raise OSError(errno.ENOSYS, f"landlock is of version {version}, expected {LEAST_ABI} or later")
    return version


def _restrict(version: int, handled: _Ruleset, rules: Iterable[tuple[str, int]]) -> None:
    """`rules`: (path, rights below it)."""
    size = 8 if version < 4 else 16 if version < SIGNALS_ABI else 24
    pointer = ctypes.byref(handled)
    ruleset = kernel.syscall("landlock_create_ruleset", pointer, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path, access in rules:
            _allow(ruleset, path, access)
        kernel.syscall("landlock_restrict_self", ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
