"""The worker's end of the zygote: starts it, asks it for boxes, notices its death, ends it.

Everything between the worker's ordinary process and the jail happens in one forked child; what goes wrong
there comes back as text."""

import contextlib
import json
import os
import resource
import signal
import socket
from pathlib import Path
from typing import NoReturn

from sandbox import jail, kernel, zygote
from sandbox.cgroup import Cgroup
from sandbox.command import MEBIBYTE
from sandbox.frames import readable
from sandbox.kernel import no_core_file
from sandbox.messages import WorkerSettings, ZygoteSettings
from sandbox.result import SandboxError, Tier


class JailedProcess:
    """The zygote or a keeper. Between requests it says nothing: input on the socket means that it hung up."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.control = control
        self.pid = pid

    def has_died(self) -> bool:
        """Whether it was killed or hung up."""
        if self.control.fileno() < 0:
            return True
        return bool(readable(self.control.fileno(), timeout_seconds=0))

    def kill(self) -> None:
        """Ends and reaps it, once: afterwards its number may be another process's."""
        if self.control.fileno() < 0:
            return
        self.control.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


_START_SECONDS = 60.0
_OOM_SCORE = 500
_STACK_BYTES = 256 * MEBIBYTE


def _sources_file() -> int:
    folder = Path(__file__).parent
    sources = [(name, (folder / f"{name}.py").read_text()) for name in zygote.BOOT_ORDER]
    descriptor = os.memfd_create("asyncrl", os.MFD_CLOEXEC)
    with open(descriptor, "w", closefd=False) as file:
        json.dump(sources, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _become(settings: ZygoteSettings, sources: int, group: Cgroup) -> NoReturn:
    kernel.signal_when_parent_dies()
    # The worker hides its /proc files; this process must write its own id maps there.
    kernel.set_dumpable(True)
    os.setsid()
    group.join()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(_OOM_SCORE))
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    soft = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    no_core_file()
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    if settings["tier"] == "namespaces":
        view = jail.View(
            tuple((source, target) for source, target in settings["binds"]), tuple(settings["hidden"])
        )
        jail.enter_namespaces(view, settings["user"])
    elif os.getuid() == 0:
        jail.drop_root(settings["user"])
    for descriptor in (sources, settings["control"]):
        os.set_inheritable(descriptor, True)
    arguments = ["-s", "-S", "-c", zygote.BOOTSTRAP, str(sources), str(settings["control"])]
    try:
        os.execve(settings["python"], [settings["python"], *arguments], settings["environment"])
    except PermissionError as error:
        hint = "only namespaces can show it to the sandbox's user; set python to one such as /usr/bin/python3"
        raise SandboxError(f"{error.filename} is out of reach for user {os.getuid()}: {hint}") from error


class ZygoteProcess(JailedProcess):
    """A running zygote. Raises SandboxError, with the child's own words, when it cannot be started.

    `kill` leaves running boxes to their own init, which the worker kills."""

    def __init__(self, told: WorkerSettings, group: Cgroup, *, user: int, work_base: str) -> None:
        self.is_inside = told["tier"] == Tier.NAMESPACES
        """Whether each box has a pid namespace of its own."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings: ZygoteSettings = {
            **told,
            "user": user,
            "work_base": work_base,
            "control": theirs.fileno(),
        }
        complaints, write_end = os.pipe()
        sources = _sources_file()
        pid = os.fork()
        if pid == 0:
            try:
                _become(settings, sources, group)
            except BaseException as error:
                os.write(write_end, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(1)
        super().__init__(ours, pid)
        os.close(write_end)
        os.close(sources)
        theirs.close()
        with open(complaints, "rb") as file:
            complaint = file.read().decode(errors="replace")
        try:
            if complaint:
                raise SandboxError(complaint)
            self.control.send(json.dumps(settings).encode())
            self.control.settimeout(_START_SECONDS)
            if self.control.recv(16) != b"ready":
                raise SandboxError("the zygote ended while it started")
        except OSError as error:
            self.kill()
            raise SandboxError(f"the zygote did not start: {error}") from error
        except SandboxError:
            self.kill()
            raise

    def clone(self, descriptors: list[int], message: bytes) -> int:
        """The pid of a new box, a child of this process, that holds `descriptors`. `message` is one of the
        zygote's: its CLONE, COLLECT or PAUSABLE."""
        return self._ask(message, descriptors)

    def start_keeper(self, control: int) -> int:
        """The pid of a new keeper, a child of this process, that listens on `control`."""
        return self._ask(zygote.KEEPER, [control])

    def _ask(self, message: bytes, descriptors: list[int]) -> int:
        try:
            socket.send_fds(self.control, [message], descriptors)
            reply = self.control.recv(zygote.PID.size)
        except OSError as error:
            raise SandboxError(f"the zygote does not answer: {error}") from error
        if len(reply) != zygote.PID.size:
            raise SandboxError("the zygote has died")
        (pid,) = zygote.PID.unpack(reply)
        if pid < 0:
            raise SandboxError(f"the zygote could not start a box: {os.strerror(-pid)}")
        return int(pid)
