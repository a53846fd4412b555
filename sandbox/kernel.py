"""System calls that Python has no wrapper for, through libc and raw numbers; requests of a trusted process
for itself. Failures raise OSError.

Runs in the host process, in the worker and in the zygote inside the jail, so it imports the standard library
only."""

import contextlib
import ctypes
import os
import resource
import threading

from sandbox import syscalls

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_PARENT, _CLONE_CHILD_SETTID = 0x00008000, 0x01000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_PR_CAP_AMBIENT_RAISE, _SECCOMP_MODE_FILTER = 2, 2
_CAPABILITY_VERSION_3 = 0x20080522
CAP_SETPCAP, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 8, 19, 21, 38

_libc = ctypes.CDLL(None, use_errno=True)
# PyDLL keeps the interpreter lock during the call: the child of a raw clone must own it when it wakes.
_libc_locked = ctypes.PyDLL(None, use_errno=True)


class SockFprog(ctypes.Structure):
    """struct sock_fprog: a classic BPF program."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def check(result: int, what: str) -> int:
    """The result of a libc call, or the OSError it reports, naming `what` was tried."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(name: str, *arguments: object) -> int:
    """The result of a raw system call by name; OSError(ENOSYS) where the machine is not in the tables."""
    numbers = syscalls.NUMBERS.get(os.uname().machine)
    if numbers is None:
        raise OSError(38, f"{name}: no system call table for machine {os.uname().machine!r}")
    number = ctypes.c_long(numbers[name])
    return check(int(_libc.syscall(number, *arguments)), name)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    arguments = (source.encode(), target.encode(), kind.encode() if kind else None)
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() if data else None)
    check(result, f"mount {source} on {target}")


def bind_read_only(source: str, target: str, *, device: bool = False) -> None:
    """Binds a file or tree at `target`, read-only with all its submounts (Linux 5.12)."""
    mount(source, target, None, MS_BIND | MS_REC)
    attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | (0 if device else MOUNT_ATTR_NODEV)
    request = _MountAttr(attributes, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(request))
    flags = ctypes.c_uint(_AT_RECURSIVE)
    where = (ctypes.c_int(_AT_FDCWD), target.encode())
    syscall("mount_setattr", *where, flags, ctypes.byref(request), size)


def detach(target: str) -> None:
    """umount2(MNT_DETACH)."""
    check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2); the caller changes directory."""
    syscall("pivot_root", new.encode(), old.encode())


def unshare(flags: int) -> None:
    """unshare(2)."""
    check(_libc.unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def thread_id_address() -> int | None:
    """Where libc keeps the calling thread's id; None when its place in the thread's
    descriptor is not certain."""
    _libc.pthread_self.restype = ctypes.c_void_p
    start = int(_libc.pthread_self())
    words = (ctypes.c_int32 * 256).from_address(start)
    found = [index for index in range(256) if words[index] == threading.get_native_id()]
    return start + 4 * found[0] if len(found) == 1 else None


def clone(flags: int, thread_id: int | None = None) -> int:
    """fork() with clone flags; 0 in the child. Single-threaded callers only: no fork handler of Python or
    libc runs.

    thread_id: thread_id_address(), which the kernel then fills in for the child, as libc's own fork does."""
    machine = os.uname().machine
    number = ctypes.c_long(syscalls.NUMBERS[machine]["clone"])
    zero, child = ctypes.c_long(0), ctypes.c_long(thread_id or 0)
    last = (zero, child) if machine == "aarch64" else (child, zero)
    sigchld = 17
    flags |= sigchld | (_CLONE_CHILD_SETTID if thread_id else 0)
    result = _libc_locked.syscall(number, ctypes.c_long(flags), zero, zero, *last)
    return check(int(result), "clone")


def _prctl(what: str, option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    check(_libc.prctl(ctypes.c_int(option), *padded), f"prctl {what}")


def signal_when_parent_dies(number: int = 9) -> None:
    """The kernel signals the caller when the thread that started it ends. Reset by a change of user."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Descendants whose parent has died become the caller's children."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may open this one's /proc files."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, int(dumpable))


def no_new_privileges() -> None:
    """No execve below the caller ever gains a privilege."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def install_filter(program: SockFprog) -> None:
    """Enters seccomp filter mode; needs no_new_privileges."""
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _last_capability() -> int:
    try:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            return int(file.read())
    except OSError:
        return 40


def bound_capabilities(keep: tuple[int, ...]) -> None:
    """Removes all capabilities but `keep` from the bounding set."""
    for capability in range(_last_capability() + 1):
        if capability not in keep:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)


def set_capabilities(keep: tuple[int, ...]) -> None:
    """Sets permitted, effective and inheritable capabilities to `keep`; the ambient set shrinks with them."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    masks = [sum(1 << (c - 32 * word) for c in keep if c // 32 == word) for word in (0, 1)]
    data = (_CapData * 2)(*[_CapData(mask, mask, mask) for mask in masks])
    check(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")


def drop_capabilities(dropped: tuple[int, ...]) -> None:
    """Takes these from the permitted capabilities, where they are among them."""
    with open("/proc/self/status", "rb") as file:
        permitted = int(next(line for line in file if line.startswith(b"CapPrm:")).split()[1], 16)
    set_capabilities(
        tuple(c for c in range(permitted.bit_length()) if permitted >> c & 1 and c not in dropped)
    )


def keep_across_exec(keep: tuple[int, ...]) -> None:
    """Makes `keep` survive execve without being root (ambient capabilities)."""
    set_capabilities(keep)
    for capability in keep:
        _prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def bound_thread_stacks(limit_bytes: int) -> None:
    """Gives new threads stacks of this size, where libc can: by default each would reserve RLIMIT_STACK."""
    if not hasattr(_libc, "pthread_setattr_default_np"):
        return
    attributes = ctypes.create_string_buffer(64)
    _libc.pthread_attr_init(attributes)
    _libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(limit_bytes))
    _libc.pthread_setattr_default_np(attributes)
    _libc.pthread_attr_destroy(attributes)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process as soon as `parent`, its parent, is gone; at once when it already is."""
    signal_when_parent_dies()
    if os.getppid() != parent:
        os._exit(1)


def limit_memory(limit_bytes: int) -> None:
    """Address space of this process; beyond it, an allocation raises MemoryError. Can be raised again
    later, up to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))


def no_core_file() -> None:
    """A crash of this process or its children leaves no core file."""
    # With exactly 1 a crash starts no program of the machine's either, which a core pattern that is a pipe
    # does otherwise, at a limit of 0 too.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
