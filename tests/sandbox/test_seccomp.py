"""The filter's policy on each architecture, by a small machine for classic BPF: the kernel runs only one of
them here."""

import errno
import os

import pytest

from sandbox import seccomp, syscalls

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEWUSER, SIGCHLD = 0x10000000, 17


def answer(program, number, arguments=(), architecture=ARCHITECTURES["x86_64"]):
    """What the filter returns: "allow", "kill", or the error's name."""
    data = {0: number, 4: architecture}
    for index, value in enumerate(arguments):
        data[16 + 8 * index] = value & 0xFFFFFFFF
        data[20 + 8 * index] = value >> 32
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, constant = program[position]
        position += 1
        if code == 0x20:
            accumulator = data.get(constant, 0)
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x06:
            if constant == ALLOW:
                return "allow"
            return "kill" if constant == KILL else errno.errorcode.get(constant & 0xFFFF, "pretended")
        else:
            tests = {
                0x15: accumulator == constant,
                0x25: accumulator > constant,
                0x35: accumulator >= constant,
                0x45: bool(accumulator & constant),
            }
            position += if_true if tests[code] else if_false


def both(machine, name, *arguments):
    """The two filters of a program with namespaces, as the kernel combines them:
    the stricter answer counts."""
    number = syscalls.NUMBERS[machine][name]
    answers = [
        answer(rules, number, arguments, ARCHITECTURES[machine])
        for rules in (seccomp.build_for_zygote(machine), seccomp.build_for_program(machine))
    ]
    return next((found for found in answers if found != "allow"), "allow")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_listed_call_is_answered_as_its_list_says(machine):
    judged = {"clone", "clone3", "prlimit64", "ioctl", "socket", "socketpair", "flock", "sync", "syncfs"}
    for name in syscalls.ALLOWED:
        if name in syscalls.NUMBERS[machine] and name not in judged:
            assert both(machine, name) == "allow", name
    for name in syscalls.DENIED:
        if name in syscalls.NUMBERS[machine]:
            assert both(machine, name) == "EPERM", name


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_that_nobody_listed_do_not_exist(machine):
    listed = set(syscalls.NUMBERS[machine].values())
    rules = seccomp.build_for_zygote(machine)
    for number in set(range(700)) - listed:
        assert answer(rules, number, (), ARCHITECTURES[machine]) == "ENOSYS"


def test_no_call_is_both_allowed_and_denied():
    assert not set(syscalls.ALLOWED) & set(syscalls.DENIED)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_processes_may_be_made_but_no_namespaces(machine):
    assert both(machine, "clone", SIGCHLD) == "allow"
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, NEWUSER, 0x20000000, 0x40000000):
        assert both(machine, "clone", flag | SIGCHLD) == "EPERM"
    assert both(machine, "clone3") == "ENOSYS"


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_zygote_may_mount_and_the_program_may_not(machine):
    number = syscalls.NUMBERS[machine]["mount"]
    assert answer(seccomp.build_for_zygote(machine), number, (), ARCHITECTURES[machine]) == "allow"
    assert both(machine, "mount") == "EPERM"


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_sockets_are_local(machine):
    assert both(machine, "socket", 1) == "allow"
    assert both(machine, "socketpair", 1, 2) == "allow"
    for family in (0, 2, 10, 16, 17, 30, 40):
        assert both(machine, "socket", family) == both(machine, "socketpair", family, 1) == "EACCES"


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_holds_up_the_host_is_refused_or_ignored(machine):
    assert both(machine, "sync") == both(machine, "syncfs", 3) == "pretended"
    assert both(machine, "flock", 3, 2) == "ENOLCK"
    assert both(machine, "inotify_init1") == "EPERM"
    for command in (1024, 1026, 1031):
        assert both(machine, "fcntl", 3, command) == "EPERM"
    for command in (0, 1, 3, 4, 6, 1030):
        assert both(machine, "fcntl", 3, command) == "allow"
    for option in (7, 8, 32, 33):
        assert both(machine, "setsockopt", 3, 1, option) == "pretended"
    assert both(machine, "setsockopt", 3, 1, 2) == both(machine, "setsockopt", 3, 6, 7) == "allow"


def test_limits_are_ones_own():
    assert both("x86_64", "prlimit64", 0, 7) == "allow"
    assert both("x86_64", "prlimit64", 1, 7) == "EPERM"


def test_the_limit_of_core_files_stays_by_whichever_pointer():
    core, somewhere = 4, 0x7FFF_0000_1000
    number = syscalls.NUMBERS["x86_64"]["prlimit64"]
    rules = seccomp.build_for_zygote("x86_64")
    assert answer(rules, number, (0, core, 0)) == "allow"
    assert answer(rules, number, (0, core, somewhere)) == "pretended"
    # The low half alone is null.
    assert answer(rules, number, (0, core, 0x7FFF_0000_0000)) == "pretended"
    assert answer(rules, number, (1, core, 0)) == "EPERM"
    assert both("x86_64", "setrlimit", core) == "pretended"
    assert both("x86_64", "setrlimit", 7) == "allow"


def test_another_architecture_is_killed_and_x32_does_not_exist():
    for rules in (seccomp.build_for_zygote("x86_64"), seccomp.build_for_program("x86_64")):
        assert answer(rules, 26, (), 0x40000003) == "kill"
    assert answer(seccomp.build_for_zygote("x86_64"), 0x40000000) == "ENOSYS"


def test_outside_of_namespaces_groups_sockets_and_modes_are_out_of_reach():
    rules = seccomp.build_outside("x86_64", None)
    numbers = syscalls.NUMBERS["x86_64"]
    for name in ("setsid", "setpgid", "connect", "bind", "setxattr", "inotify_add_watch"):
        assert answer(rules, numbers[name]) == "EPERM", name
    for name in ("chmod", "fchmodat", "chown", "utimensat"):
        assert answer(rules, numbers[name]) == "pretended", name
    assert answer(rules, numbers["socket"], (1,)) == "EACCES"
    assert answer(rules, numbers["socketpair"], (1, 1 | 0x80000)) == "allow"
    assert answer(rules, numbers["socketpair"], (1, 2)) == "EPERM"
    assert answer(rules, numbers["socketpair"], (2, 1)) == "EACCES"
    for name in ("sendmsg", "sendmmsg"):
        assert answer(rules, numbers[name]) == "EPERM"
    assert answer(rules, numbers["fsync"]) == answer(rules, numbers["prctl"], (4, 0)) == "pretended"
    assert answer(rules, numbers["prctl"], (15, 0)) == "allow"
    # TCGETS, and what would make a file immutable.
    assert answer(rules, numbers["ioctl"], (1, 0x5401)) == "allow"
    assert answer(rules, numbers["ioctl"], (1, 0x40086602)) == "ENOTTY"
    assert answer(rules, numbers["setpriority"], (0, 0, 5)) == "allow"
    assert answer(rules, numbers["setpriority"], (0, 77, 5)) == "EPERM"
    assert answer(rules, numbers["setpriority"], (2, 0, 5)) == "EPERM"


def test_without_landlocks_signal_scope_a_program_signals_only_itself():
    rules = seccomp.build_outside("x86_64", 4242)
    numbers = syscalls.NUMBERS["x86_64"]
    assert answer(rules, numbers["kill"], (4242, 6)) == "allow"
    for target in (1, 0, -1, -4242, 4243):
        assert answer(rules, numbers["kill"], (target, 9)) == "EPERM"
    assert answer(rules, numbers["pidfd_send_signal"]) == "EPERM"
    assert answer(rules, numbers["fcntl"], (0, 8)) == "EPERM"
    assert answer(rules, numbers["fcntl"], (0, 3)) == "allow"


def test_an_unknown_machine_has_no_filter():
    with pytest.raises(OSError, match="no seccomp filter for machine 'riscv64'"):
        seccomp.build_for_zygote("riscv64")


def test_the_numbers_are_those_of_the_running_kernels_headers():
    # getpid, which libc offers: the table's number must answer the same.
    import ctypes

    machine = os.uname().machine
    if machine not in syscalls.NUMBERS:
        pytest.skip(f"no table for {machine}")
    assert ctypes.CDLL(None).syscall(syscalls.NUMBERS[machine]["getpid"]) == os.getpid()
