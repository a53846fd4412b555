"""Python processes forked from one that has imported what takes each of them seconds, such as Megatron.

`Template.start` behaves as `python -m MODULE ARGUMENTS` does, from the fork on and up to its atexit handlers:
tearing down all that was imported would copy its memory, two CPU seconds for each process. Each process is
the child of its own keeper, which waits for it. When the template ends, with its `Template` or with a
killed pytest, the keeper kills the process's group and ends.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO, NoReturn

import psutil

from sandbox.frames import readable

TESTS = Path(__file__).parents[1]
PR_SET_PDEATHSIG = 1
LARGEST_REQUEST = 1 << 17


class Template:
    """The forking process, which imports `modules` first; a context manager.

    `environment` is its own, for variables that Python reads when it starts.
    """

    def __init__(self, *modules: str, environment: dict[str, str] | None = None) -> None:
        self._modules = modules
        self._environment = environment or {}

    def __enter__(self) -> "Template":
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = os.environ | self._environment
        path = os.pathsep.join([str(TESTS), *filter(None, [environment.get("PYTHONPATH")])])
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "ignore",
                    "-m",
                    "fakes.template",
                    str(theirs.fileno()),
                    *self._modules,
                ],
                env=environment | {"PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()

    def start(
        self, module: str, arguments: list[str], *, environment: dict[str, str], output: BinaryIO
    ) -> "Forked":
        """Runs `module` as `__main__`; its stdout and stderr both go to `output`."""
        request = json.dumps([module, arguments, environment]).encode()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [request], [output.fileno(), theirs.fileno()])
        return Forked(ours)


class Forked:
    """What the tests use of subprocess.Popen, for a process that a template forked."""

    def __init__(self, keeper: socket.socket) -> None:
        self._keeper = keeper
        pid, fds, _, _ = socket.recv_fds(keeper, 32, 1)
        if not pid:
            raise ChildProcessError("the template of processes is gone")
        self.pid, self._pidfd = int(pid), fds[0]
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not readable(self._keeper.fileno(), timeout_seconds=timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._keeper.recv(32))
            self._keeper.close()
            os.close(self._pidfd)
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def orphan(self) -> None:
        """Kills its parent, the keeper; nothing can wait for it then."""
        parent = psutil.Process(self.pid).parent()
        assert parent is not None
        parent.kill()
        self._keeper.close()
        os.close(self._pidfd)


def main() -> None:
    # Keepers end when they like; none is waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in sys.argv[2:]:
        importlib.import_module(module)
    # A collection in a fork would copy the memory of all that was imported.
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, fds, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 2)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            become(*json.loads(request), output=fds[0], keeper=socket.socket(fileno=fds[1]))
        for fd in fds:
            os.close(fd)


def become(
    module: str, arguments: list[str], environment: dict[str, str], *, output: int, keeper: socket.socket
) -> NoReturn:
    """Forks once more: the parent is the keeper and does not return, the child runs the module."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        keep(pid, keeper)
    keeper.close()
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    # As if it had not been imported: runpy warns otherwise.
    sys.modules.pop(module, None)
    sys.argv[1:] = arguments
    end(run(module))


def run(module: str) -> int:
    """The exit code of the module as `__main__`."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def end(code: int) -> NoReturn:
    """As the interpreter ends, without its tear-down."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def keep(pid: int, report: socket.socket) -> NoReturn:
    """Hands over the process, then its exit code. SIGTERM, the template's end, kills the process's group."""

    def end_both(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end_both)
    socket.send_fds(report, [str(pid).encode()], [os.pidfd_open(pid)])
    _, status = os.waitpid(pid, 0)
    report.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
