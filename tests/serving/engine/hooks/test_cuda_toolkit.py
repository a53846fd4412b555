"""The toolkit that servers compile with: links to NVIDIA's wheels, under the names that SGLang looks for."""

import functools
import os
from pathlib import Path

import pytest

from asyncrl.serving.engine.hooks.cuda_toolkit import link_wheels, missing_part, toolkit_environment


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Laid out as nvidia-cuda-nvcc, nvidia-nvvm and nvidia-cuda-runtime 13.0 are."""
    root = tmp_path / "nvidia" / "cu13"
    for name in (
        "bin/nvcc",
        "include/cuda.h",
        "nvvm/bin/cicc",
        "lib/libcudart.so.13",
        "lib/libcudart_static.a",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "bin" / "nvcc").chmod(0o755)
    return root


def test_the_wheels_become_a_toolkit_however_often_it_is_made(wheels: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cuda"
    for _ in range(2):
        link_wheels(wheels, folder)
    for name in ("bin/nvcc", "include/cuda.h", "nvvm/bin/cicc", "lib64/libcudart_static.a"):
        assert (folder / name).is_file()
    # The linker asks for the plain name.
    assert (folder / "lib64" / "libcudart.so").read_text() == "lib/libcudart.so.13"
    assert (folder / "lib64" / "stubs" / "libcuda.so").is_symlink()


def test_wheels_without_a_compiler_make_no_toolkit(wheels: Path, tmp_path: Path) -> None:
    (wheels / "bin" / "nvcc").unlink()
    with pytest.raises(FileNotFoundError, match="nvidia-cuda-nvcc"):
        link_wheels(wheels, tmp_path / "cuda")
    assert not (tmp_path / "cuda").exists()


def test_servers_get_it_unless_the_user_names_another(wheels: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cuda"
    assert toolkit_environment({}, folder) == {}
    link_wheels(wheels, folder)
    assert toolkit_environment({}, folder) == {"CUDA_HOME": str(folder)}
    for name in ("CUDA_HOME", "CUDA_PATH"):
        assert toolkit_environment({name: "/opt/cuda"}, folder) == {}


def test_what_is_missing_is_said_with_the_places_that_were_searched(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.serving.engine.hooks.cuda_toolkit.SYSTEM", tmp_path / "none")
    folder, path = tmp_path / "cuda", tmp_path / "bin"
    path.mkdir()
    here = {"PATH": str(path)}
    missing = functools.partial(missing_part, library="libc.so.6")
    assert "libnone.so.1 is missing, which SGLang's kernels are linked to: install libnuma1" in str(
        missing_part(here, folder, library="libnone.so.1")
    )
    assert "no C++ compiler (c++) is on PATH" in str(missing(here, folder))
    for name in ("c++", "clang++"):
        (path / name).touch(0o755)
    header = tmp_path / "Python.h"
    monkeypatch.setattr("asyncrl.serving.engine.hooks.cuda_toolkit.HEADER", header)
    assert "Python.h is missing, which Triton compiles against" in str(missing(here, folder))
    header.touch()
    assert f"is in {folder}, on PATH or in" in str(missing(here, folder))
    assert f"is in {tmp_path}/other:" in str(missing(here | {"CUDA_HOME": f"{tmp_path}/other"}, folder))
    link_wheels(wheels, folder)
    assert missing(here, folder) is None
    assert missing(here | {"CXX": "clang++"}, folder) is None
    assert "(icpx)" in str(missing(here | {"CXX": "icpx"}, folder))
    # Where nobody made a folder, one on the PATH does.
    (path / "nvcc").touch(0o755)
    assert missing(here, tmp_path / "no") is None
    assert missing(here | {"CUDA_HOME": os.fspath(wheels)}, tmp_path / "no") is None
