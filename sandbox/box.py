"""One run inside the jail: mounts, an init process, the program below it. Entered in a fresh clone of the
zygote; the program's half also below a keeper, which is the init of many runs (zygote.py).

init (pid 1 of the run's own pid namespace, where there is one) outlives the program, reports how it ended and
takes every descendant along. It runs no line of the program and cannot be signalled, traced or starved of
limits by it."""

import contextlib
import gc
import marshal
import os
import resource
import select
import signal
import stat
import struct
import time
from typing import NoReturn

from sandbox import kernel, landlock, seccomp, warm
from sandbox.messages import BoxOrder, BoxSpec, LimitFields, ZygoteSettings

REPORT = struct.Struct("<ciQ")
"""b"R", wait status, nanoseconds; then per collected file a LENGTH and its bytes."""
LENGTH = struct.Struct("<q")
MISSING, TOO_LARGE = -1, -2
"""Lengths of files that are not there, or that hold more than MAX_COLLECTED_BYTES."""
MAX_COLLECTED_BYTES = 64 << 20
EXEC_FAILED = 127
_SPEC, _STDIN, _STDOUT, _STDERR, _REPORT, _LINK = range(6)
THREAD_STACK_BYTES = 8 << 20
_PARENT_DIED = signal.SIGHUP
TURN = signal.SIGRTMIN + 1
"""Lets the init of a pausable box with a pid namespace of its own stop all other processes, and with the next
one continue them. A real-time signal: the kernel delivers as many as were sent."""
# Above the descriptors that a box is handed.
_KEPT_REPORT = 60


def pack_spec(spec: BoxSpec) -> bytes:
    """The head of a box's first descriptor; the files' contents follow."""
    # Not JSON: its decoder touches enough pages that a fresh fork pays half a millisecond. Version 2 of the
    # format is the same for every Python from 3.9 on; both ends are ours.
    text = marshal.dumps(dict(spec), 2)
    return LENGTH.pack(len(text)) + text


def read_spec(descriptor: int) -> tuple[BoxSpec, int]:
    """The box's description, and the offset at which the files' contents begin."""
    (size,) = LENGTH.unpack(os.pread(descriptor, LENGTH.size, 0))
    return marshal.loads(os.pread(descriptor, size, LENGTH.size)), LENGTH.size + size


def disk_space(spec: BoxOrder) -> int:
    """Bytes of a run's private directory: what the program may write, and the files that it is given."""
    return given_bytes(spec) + spec["limits"]["disk_bytes"]


def given_bytes(spec: BoxOrder) -> int:
    """Size of the files that a run is given, in whole pages."""
    page = resource.getpagesize()
    return sum(-(-size // page) * page for _, size in spec["files"])


def num_inodes(disk_bytes: int) -> int:
    """Files and directories that fit into a private directory of this size."""
    return max(1024, disk_bytes // 8192)


def mount_private(disk_bytes: int) -> None:
    """An empty, bounded /run with `work`, `tmp` and `shm` in it, over whatever is there."""
    inodes = num_inodes(disk_bytes)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", "/run", "tmpfs", flags, f"size={disk_bytes},nr_inodes={inodes},mode=755")
    for name in ("work", "tmp", "shm"):
        os.mkdir(f"/run/{name}", 0o777)


def mount_proc() -> None:
    """A /proc of the caller's pid namespace, with processes only.

    Read-only: a program could lower its own score there, and the kernel would choose the keeper for want of
    memory; or the share of the processor that its session has."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY
    try:
        kernel.mount("proc", "/proc", "proc", flags, "subset=pid")
    except OSError:
        # Where /proc is partly masked the kernel gives no new one; the old one must not stay visible.
        kernel.mount("tmpfs", "/proc", "tmpfs", flags, "size=4k")


def _copy(source: int, offset: int, size: int, target: int) -> None:
    while size > 0:
        sent = os.sendfile(target, source, offset, size)
        if sent == 0:
            raise OSError(f"file content ends {size} bytes early")
        offset, size = offset + sent, size - sent


def _write_files(spec: BoxSpec, source: int, offset: int, directory: str) -> None:
    for name, size in spec["files"]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        target = os.open(f"{directory}/{name}", flags, 0o755)
        _copy(source, offset, size, target)
        os.close(target)
        offset += size


def _set_limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    bounded = min(value, hard) if resource.RLIM_INFINITY not in (value, hard) else max(value, hard)
    resource.setrlimit(which, (bounded, bounded))


def limit_for_all_runs() -> None:
    """The limits that are the same for every run; the zygote's clones inherit them."""
    for which, value in (
        (resource.RLIMIT_MEMLOCK, 65536),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
    ):
        _set_limit(which, value)


def _limit(limits: LimitFields, max_tasks: int, *, warm_run: bool) -> None:
    stack_bytes = limits["stack_bytes"]
    seconds = -int(-limits["cpu_seconds"] // 1)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for which, value in (
        (resource.RLIMIT_FSIZE, limits["disk_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, max_tasks),
        # With a finite limit libc would reserve as much for each thread of a program that is started by exec;
        # without one it takes 2 MiB, and the address space bounds the main stack.
        (resource.RLIMIT_STACK, stack_bytes if warm_run else resource.RLIM_INFINITY),
        (resource.RLIMIT_AS, limits["memory_bytes"] + stack_bytes),
    ):
        _set_limit(which, value)


def _set_oom_score(proc: int, score: int) -> None:
    try:
        descriptor = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=proc)
    except OSError:
        # Without a /proc the run keeps the zygote's score, which is above every ordinary process's.
        return
    os.write(descriptor, b"%d" % score)
    os.close(descriptor)


class Jail:
    """State that the zygote prepared once for all runs: the tier, paths, and the seccomp filter."""

    def __init__(self, settings: ZygoteSettings) -> None:
        self.tier = settings["tier"]
        self.environment = settings["environment"]
        self.readable = settings["readable"]
        self.work_base = settings["work_base"]
        self.search = settings["search"]
        self.control = settings["control"]
        self.proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
        """The machine's own, which every run's covers; closed before a program's first instruction."""
        self.thread_id = kernel.thread_id_address()
        self.signals_scoped = landlock.abi() >= landlock.SIGNALS_ABI
        self.inside = self.tier == "namespaces"
        self.has_directory = False
        """Whether a keeper has mounted the run's private directory already."""
        self.filter: seccomp.Filter | None = None
        machine = os.uname().machine
        if self.inside:
            self.filter = seccomp.Filter(seccomp.build_for_program(machine))
            seccomp.Filter(seccomp.build_for_zygote(machine)).install()
        elif self.tier == "landlock" and self.signals_scoped:
            self.filter = seccomp.Filter(seccomp.build_outside(machine, None))

    def fork_program(self) -> int:
        """fork() without the handlers of Python and libc, half a millisecond; with them
        where libc is unknown."""
        return os.fork() if self.thread_id is None else kernel.clone(0, self.thread_id)

    def directory(self, init: int) -> str:
        """The run's private directory; outside of namespaces named by the init's pid, so that
        all can find it."""
        return "/run" if self.inside else f"{self.work_base}/{init}"

    def make_directory(self, directory: str, disk_bytes: int) -> None:
        """Mounts or makes it, with `work` and `tmp` in it."""
        if self.inside:
            mount_private(disk_bytes)
            mount_proc()
            return
        for path in (directory, f"{directory}/work", f"{directory}/tmp"):
            os.mkdir(path, 0o700)

    def program_environment(self, own: dict[str, str], directory: str) -> dict[str, str]:
        """The program's environment."""
        work = "/work" if self.inside else f"{directory}/work"
        temporary = "/tmp" if self.inside else f"{directory}/tmp"
        return self.environment | {"HOME": work, "PWD": work, "TMPDIR": temporary} | own

    def confine(self, directory: str) -> None:
        """Gives up everything the program must not have; irrevocable."""
        kernel.set_capabilities(())
        if self.tier == "landlock":
            devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
            landlock.restrict(readable=self.readable, writable=[directory], devices=devices)
            if not self.signals_scoped:
                rules = seccomp.build_outside(os.uname().machine, os.getpid())
                self.filter = seccomp.Filter(rules)
        if self.filter is not None:
            self.filter.install()


def _wire_descriptors(fds: list[int], report: int) -> None:
    """Standard streams (and 3, the link) in place; the report stays open until the
    program's first instruction."""
    for target, source in enumerate(fds[_STDIN : _STDERR + 1]):
        os.dup2(source, target)
    first = 3
    if len(fds) > _LINK:
        os.dup2(fds[_LINK], 3)
        first = 4
    os.closerange(first, report)
    os.closerange(report + 1, 1024)


def _prepare_program(jail: Jail, spec: BoxSpec, fds: list[int], offset: int, directory: str) -> None:
    """Everything between a clone of the zygote and a program's process; after the last
    line it is confined."""
    # First of all: a process that stays hidden from the worker is ended by it.
    kernel.set_dumpable(True)
    if not jail.has_directory:
        jail.make_directory(directory, disk_space(spec))
    _write_files(spec, fds[_SPEC], offset, f"{directory}/work")
    _set_oom_score(jail.proc, spec["oom_score"])
    _wire_descriptors(fds, _KEPT_REPORT)
    os.chdir(f"{directory}/work")
    _limit(spec["limits"], spec["max_tasks"], warm_run=spec["warm"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ, _PARENT_DIED):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    jail.confine(directory)


def _run_warm(jail: Jail, spec: BoxSpec, environment: dict[str, str]) -> None:
    # Python's own settings: a broken pipe or a full file is an exception, Ctrl-C a KeyboardInterrupt.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Inside, the zygote has all the rest already; setting each entry again would cost 0.4 ms.
    os.environ.update(spec["environment"] if jail.inside else environment)
    gc.enable()
    warm.run_script(os.path.join(os.getcwd(), spec["argv"][0]), spec["argv"], jail.search)


def become_program(jail: Jail, fds: list[int], init: int) -> NoReturn:
    """Sets the box up, confines the process, becomes the program. What fails before that is reported."""
    leave = os._exit
    is_its_own_fault = False
    try:
        os.dup2(fds[_REPORT], _KEPT_REPORT, inheritable=False)
        spec, offset = read_spec(fds[_SPEC])
        directory = jail.directory(init)
        _prepare_program(jail, spec, fds, offset, directory)
        environment = jail.program_environment(spec["environment"], directory)
        # A file of the work directory that cannot be executed is the program's doing; a missing
        # compiler is not.
        is_its_own_fault = spec["warm"] or spec["argv"][0].startswith("./")
        if spec["warm"]:
            os.close(_KEPT_REPORT)
            _run_warm(jail, spec, environment)
        os.execve(spec["argv"][0], spec["argv"], environment)
    except Exception as error:
        if not is_its_own_fault:
            os.write(_KEPT_REPORT, f"E{type(error).__name__}: {error}".encode())
    finally:
        leave(EXEC_FAILED)


def _collect(directory: str, names: list[str]) -> bytes:
    parts = []
    for name in names:
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(f"{directory}/work/{name}", flags)
        except OSError:
            parts.append(LENGTH.pack(MISSING))
            continue
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_COLLECTED_BYTES:
            os.close(descriptor)
            parts.append(LENGTH.pack(TOO_LARGE if stat.S_ISREG(found.st_mode) else MISSING))
            continue
        with open(descriptor, "rb") as file:
            content = file.read(MAX_COLLECTED_BYTES)
        parts.append(LENGTH.pack(len(content)) + content)
    return b"".join(parts)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _supervise(program: int, started: int) -> tuple[int, int]:
    """(wait status, nanoseconds) of the program; reaps orphans meanwhile."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            return status, time.monotonic_ns() - started


def _supervise_pausable(program: int, started: int) -> tuple[int, int]:
    """Like `_supervise`, in a pid namespace of its own; obeys TURN. Both signals are blocked, so that none
    comes unnoticed between two looks."""
    is_paused = False
    while True:
        found = signal.sigwaitinfo((signal.SIGCHLD, TURN))
        # The worker has no number in this namespace; processes of the box have.
        if found.si_signo == TURN and found.si_pid == 0:
            is_paused = not is_paused
            # Every process of the namespace but this one, at once, forks in progress included.
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP if is_paused else signal.SIGCONT)
        pid = -1
        while pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == program:
                return status, time.monotonic_ns() - started


def _end_group(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)


def _end_with_worker(jail: Jail, report: int) -> None:
    """The death of the worker, which may have come already, ends the box."""
    if jail.inside:
        kernel.signal_when_parent_dies()
    else:
        # Nothing but its init knows a program's descendants, and all are in the init's process group.
        signal.signal(_PARENT_DIED, _end_group)
        kernel.signal_when_parent_dies(_PARENT_DIED)
    poller = select.poll()
    poller.register(report, 0)
    if poller.poll(0):
        # Nobody is left to read the report.
        os._exit(0)


def enter(jail: Jail, fds: list[int], *, collects: bool, is_pausable: bool) -> NoReturn:
    """Becomes the init of a box and ends with it. Does as little as it can: each page it
    touches is copied twice."""
    report = fds[_REPORT]
    try:
        os.setsid()
        _end_with_worker(jail, report)
        os.close(jail.control)
        if not jail.inside:
            kernel.adopt_orphans()
        elif is_pausable:
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, TURN))
        started = time.monotonic_ns()
        program = jail.fork_program()
        if program == 0:
            become_program(jail, fds, os.getppid())
        kernel.set_capabilities(())
        kept = (_SPEC, _REPORT) if collects else (_REPORT,)
        for index, descriptor in enumerate(fds):
            # The worker waits for the end of the output: only the program may hold it open.
            if index not in kept:
                os.close(descriptor)
        supervise = _supervise_pausable if is_pausable and jail.inside else _supervise
        status, elapsed = supervise(program, started)
        collected = b""
        if collects and status == 0:
            collected = _collect(jail.directory(os.getpid()), read_spec(fds[_SPEC])[0]["collect"])
        _write_all(report, REPORT.pack(b"R", status, elapsed) + collected)
    except BaseException as error:
        _write_all(report, f"E{type(error).__name__}: {error}".encode())
    finally:
        os._exit(0)
