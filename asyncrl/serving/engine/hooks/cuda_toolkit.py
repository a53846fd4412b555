"""The CUDA toolkit with which SGLang compiles kernels at their first use, even for the plainest model.

SGLang 0.5.23 and flashinfer look under CUDA_HOME for bin/nvcc, include and lib64/libcudart.so. The wheels of
gpu.lock hold all of that in site-packages/nvidia/cu13, libraries under their versioned names alone.
`make setup GPU=1` runs this file, which makes a folder of links in the environment. It imports nothing of
asyncrl.
"""

import ctypes
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(sys.prefix) / "cuda"
WHEELS = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
HEADER = Path(sysconfig.get_path("include")) / "Python.h"
NUMA = "libnuma.so.1"
SYSTEM = Path("/usr/local/cuda")
"""Where SGLang looks at last."""
DRIVERS = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
)
"""Paths on Debian, Red Hat and WSL."""


def link_wheels(wheels: Path = WHEELS, folder: Path = FOLDER) -> None:
    """Makes `folder`, a toolkit of links. Raises FileNotFoundError where the wheels are not installed."""
    runtime = next((wheels / "lib").glob("libcudart.so.*"), None)
    if runtime is None or not (wheels / "bin" / "nvcc").is_file():
        raise FileNotFoundError(f"{wheels} has no CUDA compiler: nvidia-cuda-nvcc and nvidia-cuda-runtime")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib64" / "stubs").mkdir(parents=True)
    for name in ("bin", "include", "nvvm"):
        (folder / name).symlink_to(wheels / name)
    for library in (wheels / "lib").iterdir():
        (folder / "lib64" / library.name).symlink_to(library)
    (folder / "lib64" / "libcudart.so").symlink_to(runtime)
    # A container may get its driver only when it runs.
    driver = next((path for path in DRIVERS if Path(path).exists()), DRIVERS[0])
    (folder / "lib64" / "stubs" / "libcuda.so").symlink_to(driver)


def toolkit_environment(environment: Mapping[str, str] = os.environ, folder: Path = FOLDER) -> dict[str, str]:
    """Variables that a server's environment needs as well; a toolkit that the user names stays."""
    is_named = "CUDA_HOME" in environment or "CUDA_PATH" in environment
    return {} if is_named or not folder.is_dir() else {"CUDA_HOME": str(folder)}


def missing_part(
    environment: Mapping[str, str] = os.environ, folder: Path = FOLDER, *, library: str = NUMA
) -> str | None:
    """Parts that SGLang and Triton would not find, with the fix; None where they find all of them."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return f"{library} is missing, which SGLang's kernels are linked to: install libnuma1 (numactl-libs)"
    path = environment.get("PATH", os.defpath)
    host = environment.get("CXX", "c++")
    if shutil.which(host, path=path) is None:
        return f"no C++ compiler ({host}) is on PATH: install g++, or set CXX"
    if not HEADER.is_file():
        version = ".".join(map(str, sys.version_info[:2]))
        return f"{HEADER} is missing, which Triton compiles against: install python{version}-dev"
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    homes = [Path(named)] if named else [folder, SYSTEM]
    found = any((home / "bin" / "nvcc").is_file() for home in homes)
    if found or (not named and shutil.which("nvcc", path=path) is not None):
        return None
    looked = f"in {named}" if named else f"in {folder}, on PATH or in {SYSTEM}"
    return (
        f"no CUDA compiler (nvcc) is {looked}: `make setup GPU=1` makes {folder} from NVIDIA's wheels; else "
        f"install the toolkit of CUDA 13 and set CUDA_HOME"
    )


if __name__ == "__main__":
    link_wheels()
