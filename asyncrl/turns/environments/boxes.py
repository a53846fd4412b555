"""Boxes that an agent's commands run in: a sandbox session of ours, or a container of podman or docker.

A box has a folder of files and runs commands of the shell in it, one at a time. It ends with the process that
opened it, however that ends: a session by itself, a container because its first process reads a pipe of ours.
What a command does is told in words; BoxFailed means that the box itself failed.
"""

import ast
import base64
import contextlib
import functools
import io
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from asyncrl.turns.replies import without_middle
from sandbox.command import MEBIBYTE
from sandbox.result import SandboxError
from sandbox.session import Session, SessionLimits, SessionResult

ENGINES = ("podman", "docker")
"""In the order in which they are looked for."""
MAX_PACKED_BYTES = 4 * MEBIBYTE
"""Most of a session's workspace, compressed, that the tests are given."""
MAX_OUTPUT_CHARACTERS = 16_000
_START_SECONDS, _GRACE_SECONDS = 60.0, 10.0
_CODE_BYTES = 90_000
"""Most of a file in one call of a session."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one box."""

    memory_mib: int = 512
    disk_mib: int = 64
    """Bounds a session's files; a container's are not bounded."""
    processes: int = 64
    cpus: float = 1.0
    """Bounds a container."""
    total_seconds: float = 600.0
    """Time on the clock of all commands of a session."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a command."""

    output: str
    """Standard output and error, without the middle where they are long."""
    status: int | None
    """None where a limit ended it."""
    limit: str = ""
    """Which one."""
    is_lost: bool = False
    """The box is gone, and every file in it."""


class BoxFailed(Exception):
    """The sandbox or the container engine failed: not the command's doing."""


class Spoiled(Exception):
    """Files or processes that the agent left keep the tests from running: its own doing."""


class Box(Protocol):
    """Raises BoxFailed, and Spoiled where files or processes of the agent are in the way."""

    def put(self, files: Mapping[str, bytes]) -> None:
        """Writes files: a path that is not absolute is inside the workspace."""
        ...

    def run(self, command: str, seconds: float) -> Ran: ...

    def pack(self) -> bytes:
        """The workspace as an archive."""
        ...

    def unpack(self, packed: bytes) -> None:
        """Replaces the workspace by that of another box of the same kind."""
        ...

    def read(self, path: str) -> str | None:
        """The beginning of a file, None where there is none."""
        ...

    def close(self) -> None: ...


_HELPERS = """
import base64, io, os, shutil, signal, subprocess, tarfile

def put(path, content, mode):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, mode) as file:
        file.write(base64.b64decode(content))

def run(command, seconds):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean.update(HOME=os.getcwd(), PYTHONNOUSERSITE="1")
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, env=clean,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

def read(path, size):
    try:
        with open(path, "rb") as file:
            return file.read(size).decode(errors="replace")
    except OSError:
        return None

def pack():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        # Pipes and devices are left out.
        archive.add(".", filter=lambda each: each if each.isdir() or each.isreg() or each.issym() else None)
    print(base64.b64encode(packed.getvalue()).decode(), flush=True)

def unpack(content):
    for entry in os.scandir("."):
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(content)), mode="r:gz") as archive:
        archive.extractall(".")
"""
_LARGEST_TEXT = MAX_PACKED_BYTES * 4 // 3


class SandboxBox:
    """A session of the sandbox, whose interpreter starts the commands. It has no network."""

    def __init__(self, limits: Limits) -> None:
        try:
            self._session = Session.open(
                SessionLimits(
                    call_seconds=limits.total_seconds,
                    total_seconds=limits.total_seconds,
                    cpu_seconds=max(1.0, limits.total_seconds),
                    memory_bytes=limits.memory_mib * MEBIBYTE,
                    disk_bytes=limits.disk_mib * MEBIBYTE,
                    processes=limits.processes,
                    excerpt_bytes=_LARGEST_TEXT + 4096,
                )
            )
        except SandboxError as error:
            raise BoxFailed(str(error)) from error
        self._called(_HELPERS)

    def put(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise BoxFailed(
                    f"{path} is outside the workspace, which the sandbox has alone: name an image, or a path "
                    f"inside the workspace"
                )
            for first in range(0, max(1, len(content)), _CODE_BYTES):
                part = base64.b64encode(content[first : first + _CODE_BYTES]).decode()
                self._done(f"put({path!r}, {part!r}, {'ab' if first else 'wb'!r})")

    def run(self, command: str, seconds: float) -> Ran:
        done = self._called(f"run({command!r}, {seconds!r})")
        output = without_middle(done.stdout, MAX_OUTPUT_CHARACTERS)
        if done.lost or done.limit:
            return Ran(output, None, done.lost or done.limit, is_lost=True)
        if done.value is None:
            return Ran(output, None, f"{seconds:g} seconds")
        return Ran(output, int(done.value))

    def pack(self) -> bytes:
        packed = self._done("pack()").stdout.strip()
        if len(packed) > _LARGEST_TEXT:
            raise Spoiled(f"the workspace has more than {MAX_PACKED_BYTES >> 20} MiB, compressed")
        return packed.encode()

    def unpack(self, packed: bytes) -> None:
        self._done("packed = b''")
        for first in range(0, len(packed), _CODE_BYTES):
            self._done(f"packed += {packed[first : first + _CODE_BYTES]!r}")
        self._done("unpack(packed); del packed")

    def read(self, path: str) -> str | None:
        # Printed: a value would be cut as a value.
        done = self._done(f"print(repr(read({path!r}, 4000)), end='')")
        return None if done.stdout == "None" else str(ast.literal_eval(done.stdout))

    def close(self) -> None:
        self._session.close()

    def _done(self, code: str) -> SessionResult:
        """A call of our own code. Raises Spoiled where it did not end well: by what it found."""
        done = self._called(code)
        if done.traceback or done.lost or done.limit:
            raise Spoiled(done.traceback.strip().rpartition("\n")[2] or done.lost or done.limit)
        return done

    def _called(self, code: str) -> SessionResult:
        try:
            return self._session.run(code)
        except SandboxError as error:
            raise BoxFailed(str(error)) from error


class ContainerBox:
    """A container of `image`, which must be there: nothing is pulled."""

    def __init__(
        self, engine: str, image: str, limits: Limits, *, has_network: bool, folder: str | None
    ) -> None:
        """`folder`: the workspace; None: where the image starts. Raises BoxFailed."""
        self._engine, self._folder = engine, folder
        self._name = f"asyncrl-{secrets.token_hex(8)}"
        network = [] if has_network else ["--network", "none"]
        where = [] if folder is None else ["--workdir", folder]
        command = [
            *(engine, "run", "--rm", "--interactive", "--name", self._name, "--pull", "never"),
            *("--memory", f"{limits.memory_mib}m", "--pids-limit", str(limits.processes)),
            *("--cpus", f"{limits.cpus:g}", "--security-opt", "no-new-privileges"),
            *("--label", "asyncrl", *network, *where, "--entrypoint", "cat", image),
        ]
        # `cat` ends when the pipe does, and the container with it, whatever ends this process.
        self._first = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._first.stdin is not None and self._first.stdout is not None
        with contextlib.suppress(OSError):
            self._first.stdin.write(b"up\n")
            self._first.stdin.flush()
        if self._first.stdout.readline() != b"up\n":
            said = _last_line(self._first.communicate()[1])
            raise BoxFailed(f"`{engine} run` of {image} failed: {said or 'no words'}")

    def put(self, files: Mapping[str, bytes]) -> None:
        for root, inside in _by_root(files, self._workspace()).items():
            self._checked(["exec", self._name, "mkdir", "-p", root])
            self._checked(["cp", "-", f"{self._name}:{root}"], _tar(inside))

    def run(self, command: str, seconds: float) -> Ran:
        # By the container's own `timeout`: to end the engine's client would leave the command.
        inside = ["timeout", "-s", "KILL", f"{seconds:g}", "sh", "-c", command]
        done = self._asked(["exec", self._name, *inside], seconds=seconds + _GRACE_SECONDS)
        output = without_middle(done.stdout.decode(errors="replace"), MAX_OUTPUT_CHARACTERS)
        if done.returncode == 137:
            is_lost = self._first.poll() is not None
            return Ran(output, None, "memory" if is_lost else f"{seconds:g} seconds", is_lost)
        return Ran(output, done.returncode)

    def pack(self) -> bytes:
        done = self._asked(
            ["cp", f"{self._name}:{self._workspace()}/.", "-"], seconds=_START_SECONDS, joins=False
        )
        if done.returncode:
            raise Spoiled("the workspace cannot be read")
        return done.stdout

    def unpack(self, packed: bytes) -> None:
        self._checked(["exec", self._name, "sh", "-c", "find . -mindepth 1 -delete"])
        self._checked(["cp", "-", f"{self._name}:{self._workspace()}"], packed)

    def end_processes(self) -> None:
        """Ends all but the first, which keeps the container."""
        self._asked(["exec", self._name, "sh", "-c", "kill -KILL -1"], seconds=_GRACE_SECONDS)

    def read(self, path: str) -> str | None:
        done = self._asked(["exec", self._name, "head", "-c", "4000", path], seconds=_GRACE_SECONDS)
        return None if done.returncode else done.stdout.decode(errors="replace")

    def close(self) -> None:
        if self._first.stdin is not None:
            with contextlib.suppress(OSError):
                self._first.stdin.close()
            self._first.stdin = None
        with contextlib.suppress(BoxFailed):
            self._asked(["rm", "--force", self._name], seconds=_GRACE_SECONDS)
        self._first.kill()
        self._first.communicate()

    def _workspace(self) -> str:
        if self._folder is None:
            self._folder = (
                self._asked(["exec", self._name, "pwd"], seconds=_START_SECONDS).stdout.decode().strip()
            )
        return self._folder

    def _checked(self, arguments: Sequence[str], given: bytes = b"") -> None:
        done = self._asked(arguments, given, seconds=_START_SECONDS)
        if done.returncode:
            raise BoxFailed(f"`{self._engine} {arguments[0]}` failed: {_last_line(done.stdout)}")

    def _asked(
        self, arguments: Sequence[str], given: bytes = b"", *, seconds: float, joins: bool = True
    ) -> "subprocess.CompletedProcess[bytes]":
        """`joins`: standard error belongs to the output."""
        try:
            return subprocess.run(
                [self._engine, *arguments],
                input=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if joins else subprocess.DEVNULL,
                timeout=seconds,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BoxFailed(f"`{self._engine} {arguments[0]}` failed: {error}") from error


def find_engine(named: str) -> str:
    """The engine that option `engine` names; "auto" is the first that is there. Raises ValueError."""
    wanted = ENGINES if named == "auto" else (named,)
    found = next((engine for engine in wanted if shutil.which(engine)), None)
    if found is None:
        missing = "neither podman nor docker is" if named == "auto" else f"{named} is not"
        raise ValueError(
            f"{missing} on the PATH, and a row of the environment container names an image. Install podman "
            f"(rootless), or leave the image out: commands then run in the sandbox."
        )
    return found


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


@functools.cache
def check_image(engine: str, image: str, build: str = "") -> None:
    """Raises ValueError where the image is not there; `build`: the command that makes it. One that is there
    is looked for once in a process: each row of a data file asks."""
    command = [engine, "image", "inspect", image]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"{engine} cannot be asked for the image {image}: {error}") from error
    if done.returncode:
        raise ValueError(
            f"the image {image} is not there ({_last_line(done.stdout)}). Nothing is pulled in a run: get it "
            f"by `{build or f'{engine} pull {image}'}`."
        )


def _by_root(files: Mapping[str, bytes], workspace: str) -> dict[str, dict[str, bytes]]:
    """Files by the folder that they are unpacked in: the workspace, or the root."""
    found: dict[str, dict[str, bytes]] = {}
    for path, content in files.items():
        root = "/" if PurePosixPath(path).is_absolute() else workspace
        found.setdefault(root, {})[path.lstrip("/")] = content
    return found


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
