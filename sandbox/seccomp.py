"""The seccomp filter: which system calls a program in the sandbox may make, as a classic BPF program.

Owns the policy on arguments; the names are in syscalls.py. `build` is pure, so that tests can run its output
through a BPF machine for every architecture in the table. A machine that is not in the table has no filter:
fail closed."""

import ctypes
import struct

from sandbox import kernel, syscalls

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _GREATER, _GREATER_EQUAL, _ANY_BIT = 0x15, 0x25, 0x35, 0x45
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENT_OFFSET = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _EACCES, _ENOTTY, _ENOLCK, _ENOSYS = 1, 13, 25, 37, 38
_REFUSE = _ERRNO | _EPERM
# The call does nothing and says that it did: shutil and tempfile set modes and times, which
# nothing here needs.
_PRETEND = _ERRNO
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_NAMESPACES = (
    kernel.NEWNS
    | kernel.NEWCGROUP
    | kernel.NEWUTS
    | kernel.NEWIPC
    | kernel.NEWUSER
    | kernel.NEWPID
    | kernel.NEWNET
)
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ = 1024, 1026, 1031
_SOL_SOCKET, _BUFFER_SIZES = 1, [7, 8, 32, 33]
_RLIMIT_CORE, _PR_SET_DUMPABLE = 4, 4
# TCGETS, TIOCGPGRP, TIOCOUTQ, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC: what libraries ask.
_ORDINARY_IOCTLS = [0x5401, 0x540F, 0x5411, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x5452]

# What namespaces keep inside the box, and landlock does not. sendmsg could hide descriptors in a socket,
# where the files and sockets behind them cannot be counted.
_OUTSIDE_REFUSED = """
setsid setpgid connect bind listen accept accept4 setxattr lsetxattr fsetxattr removexattr
lremovexattr fremovexattr mlockall sendmsg sendmmsg
""".split()
_OUTSIDE_PRETENDED = """
chmod fchmod fchmodat chown fchown lchown fchownat utime utimes futimesat utimensat fsync fdatasync
sync_file_range
""".split()
_REFUSED_FCNTLS = [_F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ]
_SELF_ONLY = "sched_setaffinity sched_setscheduler sched_setattr".split()
# What the zygote and the keeper need, and a program must not have.
_SETTING_UP = ("mount", "umount2", "clone")
_SIGNAL_CALLS = "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal".split()

Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, constant)."""
Rule = list[Instruction]


def _ret(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _load(argument: int) -> Instruction:
    # Only the low 32 bits: all arguments judged here are int or unsigned int in the kernel.
    return (_LOAD, 0, 0, _ARGUMENT_OFFSET + 8 * argument)


def _load_high(argument: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENT_OFFSET + 8 * argument + 4)


def _only(argument: int, value: int, *, otherwise: int = _REFUSE) -> Rule:
    return [_load(argument), (_EQUAL, 0, 1, value), _ret(_ALLOW), _ret(otherwise)]


def _none_of(argument: int, values: list[int], *, otherwise: int = _REFUSE) -> Rule:
    tests: Rule = [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [_load(argument), *tests, _ret(_ALLOW), _ret(otherwise)]


def _one_of(argument: int, values: list[int], *, otherwise: int) -> Rule:
    tests: Rule = [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [_load(argument), *tests, _ret(otherwise), _ret(_ALLOW)]


# A core pattern that is a pipe starts a program of the machine's for each crash, unless this limit is exactly
# 1: a program must not lower it to 0. A pointer has two halves, and may end in 32 zero bits.
_OWN_LIMITS_BUT_CORE: Rule = [
    _load(0),
    (_EQUAL, 1, 0, 0),
    _ret(_REFUSE),
    _load(1),
    (_EQUAL, 0, 5, _RLIMIT_CORE),
    _load(2),
    (_EQUAL, 0, 2, 0),
    _load_high(2),
    (_EQUAL, 1, 0, 0),
    _ret(_PRETEND),
    _ret(_ALLOW),
]
# What waits in sockets is counted by their number where no cgroup counts it: their size stays the default.
_NO_BUFFER_SIZES: Rule = [
    _load(1),
    (_EQUAL, 1, 0, _SOL_SOCKET),
    _ret(_ALLOW),
    *_none_of(2, _BUFFER_SIZES, otherwise=_PRETEND),
]


_NO_NAMESPACES = [_load(0), (_ANY_BIT, 0, 1, _NAMESPACES), _ret(_REFUSE), _ret(_ALLOW)]


def _rules_inside() -> dict[str, Rule]:
    """The calls judged by their arguments wherever the program runs."""
    return {
        # glibc falls back from clone3, whose flags lie in memory that a filter cannot read, to clone.
        "clone3": [_ret(_ERRNO | _ENOSYS)],
        "clone": _NO_NAMESPACES,
        # Another process, such as the keeper of later runs, must not have its limits or priority changed.
        "prlimit64": _OWN_LIMITS_BUT_CORE,
        "setrlimit": _none_of(0, [_RLIMIT_CORE], otherwise=_PRETEND),
        **{name: _only(0, 0) for name in _SELF_ONLY},
        "setpriority": [
            _load(0),
            (_EQUAL, 0, 3, 0),
            _load(1),
            (_EQUAL, 0, 1, 0),
            _ret(_ALLOW),
            _ret(_REFUSE),
        ],
        "ioctl": _none_of(1, [_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP]),
        "socket": _only(0, _AF_UNIX, otherwise=_ERRNO | _EACCES),
        "socketpair": _only(0, _AF_UNIX, otherwise=_ERRNO | _EACCES),
        "setsockopt": _NO_BUFFER_SIZES,
        # A lease or a lock on a file that others use too would hold up the host; so would writing its disks.
        "fcntl": _none_of(1, _REFUSED_FCNTLS),
        "flock": [_ret(_ERRNO | _ENOLCK)],
        "sync": [_ret(_PRETEND)],
        "syncfs": [_ret(_PRETEND)],
    }


def _rules_outside(signals_of: int | None) -> dict[str, Rule]:
    """The further rules where the program shares the machine's pids, files and sockets."""
    rules: dict[str, Rule] = {name: [_ret(_REFUSE)] for name in _OUTSIDE_REFUSED}
    rules |= {name: [_ret(_PRETEND)] for name in _OUTSIDE_PRETENDED}
    rules["socket"] = [_ret(_ERRNO | _EACCES)]
    # A datagram socket could still send to a named socket of the machine.
    rules["socketpair"] = [
        _load(0),
        (_EQUAL, 1, 0, _AF_UNIX),
        _ret(_ERRNO | _EACCES),
        _load(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        (_EQUAL, 0, 1, _SOCK_STREAM),
        _ret(_ALLOW),
        _ret(_REFUSE),
    ]
    # An owner may change flags of files that it can only read, such as to make them immutable.
    rules["ioctl"] = _one_of(1, _ORDINARY_IOCTLS, otherwise=_ERRNO | _ENOTTY)
    # The worker must see what files and sockets a process holds.
    rules["prctl"] = _none_of(0, [_PR_SET_DUMPABLE], otherwise=_PRETEND)
    if signals_of is not None:
        rules |= {name: [_ret(_REFUSE)] for name in _SIGNAL_CALLS}
        # To itself, as abort() and raise() do.
        rules |= {name: _only(0, signals_of) for name in ("kill", "tgkill", "tkill")}
        rules["fcntl"] = _none_of(1, [*_REFUSED_FCNTLS, _F_SETOWN, _F_SETSIG, _F_SETOWN_EX])
    return rules


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _answer(ranges: list[tuple[int, int]], value: int) -> Rule:
    program: Rule = []
    for low, high in ranges:
        program += [(_GREATER_EQUAL, 0, 2, low), (_GREATER, 1, 0, high), _ret(value)]
    return program


def _begin(machine: str) -> Rule:
    if machine not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise OSError(_ENOSYS, f"no seccomp filter for machine {machine!r}; expected one of {known}")
    return [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        # Another architecture's numbers (32-bit calls) mean other calls.
        _ret(_KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]


def _apply(rules: dict[str, Rule], numbers: dict[str, int]) -> Rule:
    program: Rule = []
    for name, rule in rules.items():
        if name in numbers:
            program += [(_EQUAL, 0, len(rule), numbers[name]), *rule]
    return program


def _policy(machine: str, rules: dict[str, Rule]) -> Rule:
    program = _begin(machine)
    numbers = syscalls.NUMBERS[machine]
    # x32 calls carry bit 30 and so fall past every range, to ENOSYS.
    allowed = [numbers[name] for name in syscalls.ALLOWED if name in numbers and name not in rules]
    denied = [numbers[name] for name in syscalls.DENIED if name in numbers and name not in rules]
    program += _apply(rules, numbers)
    program += _answer(_ranges(allowed), _ALLOW)
    program += _answer(_ranges(denied), _REFUSE)
    return [*program, _ret(_ERRNO | _ENOSYS)]


def build_for_zygote(machine: str) -> Rule:
    """The policy of a program with its own namespaces, minus what box set-up needs: mount, new namespaces.

    A zygote's clones inherit it for nothing; attaching the whole policy to each program would cost 0.7 ms.
    Raises OSError for a machine without a table."""
    return _policy(machine, _rules_inside() | {name: [_ret(_ALLOW)] for name in _SETTING_UP})


def build_for_program(machine: str) -> Rule:
    """The rules that close what `build_for_zygote` left open; the two together are the policy."""
    rules = {name: [_ret(_REFUSE)] for name in _SETTING_UP} | {"clone": _NO_NAMESPACES}
    return [*_begin(machine), *_apply(rules, syscalls.NUMBERS[machine]), _ret(_ALLOW)]


def build_outside(machine: str, signals_of: int | None) -> Rule:
    """The whole policy of a program without namespaces; `signals_of`: the one pid that may be signalled."""
    return _policy(machine, _rules_inside() | _rules_outside(signals_of))


class Filter:
    """A built filter in memory, ready to be installed; holds the buffer that the kernel reads."""

    def __init__(self, instructions: Rule) -> None:
        packed = b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
        self._buffer = ctypes.create_string_buffer(packed, len(packed))
        self._program = kernel.SockFprog(len(instructions), ctypes.addressof(self._buffer))

    def install(self) -> None:
        """Applies to the calling process and all it starts, for good."""
        kernel.install_filter(self._program)
