"""`make gpu-lock`: writes gpu.lock, every package of an environment for GPUs; installs none of them.

Asks uv, in an environment that is thrown away, what pyproject.toml's packages resolve to on Linux x86_64 with
Python 3.12, as wheels alone; SGLang pins torch and its kernels. Versions of cpu.lock and trackers.lock are
kept where they fit, so that environments differ as little as SGLang's pins allow. Standard library only.
"""

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
PYTHON = "3.12"
PLATFORM = "x86_64-manylinux_2_34"
"""SGLang's wheel asks for glibc 2.34: Ubuntu 22.04, Debian 12 or newer."""
COMPILER = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")
"""NVIDIA's compiler, of which others ask for any version. Its headers refuse those of another CUDA, and torch
brings its own."""
CUDA = "13.0"
HEADER = f"""\
# Every package of an environment for NVIDIA GPUs, exact, with the digests of its wheels: Linux x86_64 (glibc
# 2.34 or newer), Python {PYTHON}, CUDA {CUDA} (driver 580 or newer). `make gpu-lock` made it, and
# `make setup GPU=1` installs it with --no-deps.
"""


class Wheel(TypedDict):
    hashes: dict[str, str]


class Package(TypedDict):
    """A package of a pylock.toml (PEP 751)."""

    name: str
    version: str
    wheels: list[Wheel]


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = str(folder / "venv" / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "uv"], check=True)
        versions = resolve([python, "-m", "uv"], folder)
    (ROOT / "gpu.lock").write_text(HEADER + "".join(f"{line(package)}\n" for package in versions))
    return 0


def resolve(uv: list[str], folder: Path) -> list[Package]:
    """Packages to install. uv keeps the versions that its output file names, in the format of requirements
    alone; which wheels fit the platform, it says in the format pylock alone. So it is asked twice."""
    compiling = [*uv, "pip", "compile", "--quiet", "--no-build", "--no-annotate", "--no-header"]
    compiling += ["--python-version", PYTHON, "--python-platform", PLATFORM]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked, exact, bounds = folder / "asked.in", folder / "exact.txt", folder / "bounds.txt"
    asked.write_text("\n".join([*project["dependencies"], *project["optional-dependencies"]["dev"]]))
    exact.write_text("".join((ROOT / f"{name}.lock").read_text() for name in ("cpu", "trackers")))
    bounds.write_text("".join(f"{name}=={CUDA}.*\n" for name in COMPILER))
    subprocess.run(
        [*compiling, str(asked), "-c", str(bounds), "-o", str(exact)], check=True, stdout=subprocess.DEVNULL
    )
    locked = folder / "pylock.toml"
    subprocess.run(
        [*compiling, "--no-deps", str(exact), "--format", "pylock.toml", "-o", str(locked)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    packages: list[Package] = tomllib.loads(locked.read_text())["packages"]
    return packages


def line(package: Package) -> str:
    """A requirement as pip reads it: with the digest of each wheel that fits."""
    digests = sorted({wheel["hashes"]["sha256"] for wheel in package["wheels"]})
    return " ".join(
        [f"{package['name']}=={package['version']}", *(f"--hash=sha256:{digest}" for digest in digests)]
    )


if __name__ == "__main__":
    sys.exit(main())
