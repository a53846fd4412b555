"""The lock files: exact, complete for what they are installed for, and alike where SGLang's pins allow it."""

import importlib.metadata
import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from fakes.trackers import needs
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
GPU_LOCK = runpy.run_path(str(ROOT / ".make" / "gpu_lock.py"))
COMPILER, CUDA, PYTHON = GPU_LOCK["COMPILER"], GPU_LOCK["CUDA"], GPU_LOCK["PYTHON"]
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)((?: --hash=sha256:[0-9a-f]{64})*)(?:; (.+))?")
GPU_MACHINE = {
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "os_name": "posix",
    "python_version": PYTHON,
    "python_full_version": f"{PYTHON}.9",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "extra": "",
}


def pins(name: str) -> dict[str, str]:
    """Canonical name -> version, on a machine with GPUs."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        if not line.startswith("#"):
            match = PIN.fullmatch(line)
            assert match, f"{name}: {line}"
            if match[4] is None or Marker(match[4]).evaluate(GPU_MACHINE):
                found[canonicalize_name(match[1])] = match[2]
    return found


def unmet(requirements: list[str], locked: dict[str, str]) -> list[str]:
    """Those that a machine with GPUs needs and `locked` does not have."""
    missing = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate(GPU_MACHINE):
            continue
        version = locked.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{requirement} (locked: {version})")
    return missing


def asked_by_us() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["dev"]]


@pytest.mark.parametrize("name", ["cpu.lock", "gpu.lock"])
def test_a_lock_has_what_the_project_asks_for(name: str) -> None:
    assert unmet(asked_by_us(), pins(name)) == []


def test_every_wheel_of_the_gpu_lock_has_a_digest() -> None:
    lines = [line for line in (ROOT / "gpu.lock").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 200
    assert [line for line in lines if "--hash=sha256:" not in line] == []


def test_the_gpu_lock_has_all_that_sglang_pins() -> None:
    locked = pins("gpu.lock")
    assert unmet(importlib.metadata.requires("sglang") or [], locked) == []
    asked = {
        Requirement(line).name: Requirement(line) for line in importlib.metadata.requires("sglang") or []
    }
    assert str(asked["torch"].specifier) == f"=={locked['torch']}"
    assert {"sglang-kernel", "flashinfer-python", "nvidia-nccl-cu13", "triton"} <= locked.keys()


def test_packages_of_both_locks_find_in_the_gpu_lock_what_they_need() -> None:
    locked, here = pins("gpu.lock"), pins("cpu.lock")
    shared = [name for name in locked if locked[name] == here.get(name)]
    assert len(shared) > 90
    found = {name: unmet(importlib.metadata.requires(name) or [], locked) for name in shared}
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_the_locks_differ_only_where_sglang_pins_something_else() -> None:
    locked, here = pins("gpu.lock"), pins("cpu.lock")
    differing = {name for name in locked.keys() & here.keys() if locked[name] != here[name]}
    # numpy by numba, which SGLang pins.
    assert differing == {"torch", "numpy", "python-dateutil", "sentencepiece", "soundfile"}


@needs("wandb")
@pytest.mark.parametrize("base", ["cpu.lock", "gpu.lock"])
def test_trackers_find_what_they_need_and_change_no_package(base: str) -> None:
    added, there = pins("trackers.lock"), pins(base)
    assert {name: version for name, version in added.items() if there.get(name, version) != version} == {}
    found = {name: unmet(importlib.metadata.requires(name) or [], there | added) for name in added}
    # For pictures, which nobody sends.
    assert {name: missing for name, missing in found.items() if missing} == {
        "trackio": ["pillow<13.0.0 (locked: 13.0.0)"]
    }
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert unmet(optional["trackers"], added) == []


@pytest.mark.parametrize("base", ["cpu.lock", "gpu.lock"])
def test_agents_find_what_they_need_and_change_no_package(base: str) -> None:
    for name in ("smolagents", "jiter"):
        pytest.importorskip(name, reason="make setup AGENTS=1")
    added, there = pins("agents.lock"), pins(base)
    locked = there | added
    assert {name: version for name, version in added.items() if there.get(name, version) != version} == {}
    needed = {name: unmet(importlib.metadata.requires(name) or [], locked) for name in ("openai", *added)}
    assert {name: missing for name, missing in needed.items() if missing} == {}
    # Two extras may be installed together.
    others = pins("trackers.lock") | pins("gym.lock") | pins("ray.lock")
    assert {name for name in added if others.get(name, added[name]) != added[name]} == set()
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert unmet(optional["agents"], locked) == []


@pytest.mark.parametrize("base", ["cpu.lock", "gpu.lock"])
def test_the_site_and_the_notebooks_find_what_they_need_and_change_no_package(base: str) -> None:
    for name in ("mkdocs", "ipykernel"):
        pytest.importorskip(name, reason="make setup DOCS=1")
    added, there = pins("docs.lock"), pins(base)
    assert {name: version for name, version in added.items() if there.get(name, version) != version} == {}
    needed = {
        name: unmet(importlib.metadata.requires(name) or [], there | added) for name in ("ipython", *added)
    }
    assert {name: missing for name, missing in needed.items() if missing} == {}
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert unmet(optional["docs"], there | added) == []


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name in ("Makefile", "gpu.lock", "cpu.lock", "gym.lock", "trackers.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_an_environment_of_cpu_builds_is_not_turned_into_one_for_gpus(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".ready").touch()
    done = make(tmp_path, "setup", "GPU=1")
    assert done.returncode == 2
    assert ".venv holds the CPU builds. Remove it (rm -rf .venv), then run the same again." in done.stderr


def test_another_python_than_the_locks_is_refused(tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\nexec python3 -c "import sys; sys.version_info = (3, 13, 0); exec(sys.argv[1])" "$2"\n'
    )
    python.chmod(0o755)
    done = make(tmp_path, "setup", "GPU=1")
    assert done.returncode == 2
    assert f"gpu.lock is for Linux x86_64, Python {PYTHON}; this is Linux" in done.stderr
    assert "Python 3.13: set PYTHON" in done.stderr


@pytest.mark.parametrize(
    ("uv", "said"),
    [
        ("#!/bin/sh\necho uv $*; exit 1\n", f"uv venv --quiet --seed --clear --python {PYTHON} .venv"),
        (None, f"no python{PYTHON} with venv is on PATH: install it, or uv, which fetches it"),
    ],
)
def test_the_locks_python_is_fetched_by_uv_or_the_user_is_told_how(
    uv: str | None, said: str, tmp_path: Path
) -> None:
    # A PATH without a Python of that version.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "make", "test", "echo", "rm", "cp", "sed", "grep", "ls", "head", "mkdir", "touch"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    if uv is not None:
        (tools / "uv").write_text(uv)
        (tools / "uv").chmod(0o755)
    for name in ("Makefile", "gpu.lock", "cpu.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["make", "setup", "GPU=1"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and said in done.stdout + done.stderr


def test_an_environment_for_gpus_stays_one_without_saying_so_again(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    for name in ("Makefile", "gpu.lock", "cpu.lock", "gym.lock", "trackers.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv" / ".ready-gpu").touch()
    done = subprocess.run(["make", "-n", "setup"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "cpu.lock" not in done.stdout and "Nothing to be done" in done.stdout


@pytest.mark.parametrize(
    ("uv", "installer"),
    [
        ("UV=/opt/uv", "/opt/uv pip install --python .venv/bin/python"),
        ("UV=", ".venv/bin/python -m pip install"),
    ],
)
def test_packages_are_installed_by_uv_where_it_is_there_and_torch_by_pip_where_uv_fails(
    uv: str, installer: str, tmp_path: Path
) -> None:
    for name in ("Makefile", "cpu.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "-n", "setup", uv]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    (packages,) = [line for line in said.splitlines() if "-r cpu.lock" in line]
    (torch,) = [line for line in said.splitlines() if "--retries 0 --extra-index-url" in line]
    assert packages.startswith(installer) and "--no-deps" in packages
    # uv stops at an index that cannot be reached; pip passes over it.
    before, by_pip, _ = torch.partition(".venv/bin/python -m pip install")
    assert by_pip and ("||" in before) == (uv == "UV=/opt/uv")


@pytest.mark.parametrize(("words", "lock"), [((), "cpu.lock"), (("GPU=1",), "gpu.lock")])
def test_uv_is_fetched_where_none_is_on_path_and_pip_takes_over_where_it_fails(
    words: tuple[str, ...], lock: str, tmp_path: Path
) -> None:
    for name in ("Makefile", "cpu.lock", "gpu.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "-n", "setup", "UV=.venv/bin/uv", *words]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    fetched = re.search(r"-m pip install .* uv==[\d.]+", said)
    (packages,) = [line for line in said.splitlines() if f"-r {lock}" in line]
    assert fetched is not None and fetched.start() < said.index(packages)
    by_uv, by_pip = packages.split("||", 2)[0], packages.rpartition("rm -f .venv/bin/uv && ")[2]
    assert "test -x .venv/bin/uv" in by_uv and by_pip.startswith(".venv/bin/python -m pip install")


def test_the_containerfile_copies_what_is_there() -> None:
    text = (ROOT / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert {"gpu.lock", "cpu.lock", "Makefile", "asyncrl"} <= set(copied)
    assert [word for word in copied if not (ROOT / word).exists()] == []
    # What the wheel has, and so what setuptools looks for.
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    files = [file for each in packaged.values() for pattern in each for file in ROOT.glob(pattern)]
    tops = {file.relative_to(ROOT).parts[0] for file in files}
    assert tops - set(copied) == set()


def test_each_build_of_the_containerfile_runs_what_the_makefile_has(tmp_path: Path) -> None:
    """A machine that runs no containers: the commands are expanded by make in a copy of what they get."""
    text = (ROOT / "Containerfile").read_text()
    commands = re.findall(r"^RUN (make .+)$", text, re.MULTILINE)
    assert len(commands) == 2
    for name in ("Makefile", "pyproject.toml", "cpu.lock", "gpu.lock"):
        shutil.copy(ROOT / name, tmp_path)
    for command in commands:
        said = subprocess.run(
            [*command.split(), "-n"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        lock = "gpu.lock" if "GPU=1" in command else "cpu.lock"
        assert f"-r {lock}" in said
        scripts = [word for word in re.findall(r"-P (\S+\.py)", said) if not (ROOT / word).is_file()]
        assert scripts == []
    stages = set(re.findall(r" AS (\S+)$", text, re.MULTILINE))
    assert {f"{build}{part}" for build in ("cpu", "gpu") for part in ("", "-python")} <= stages


@pytest.mark.parametrize("extra", ["GYM", "RAY", "TRACKERS", "AGENTS", "DOCS"])
def test_an_extra_of_an_environment_for_gpus_installs_no_cpu_build(extra: str, tmp_path: Path) -> None:
    # Of a clone where nothing is set up, whatever this one has.
    for name in ("Makefile", "pyproject.toml", "cpu.lock", "gpu.lock", f"{extra.lower()}.lock"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "-n", "setup", "GPU=1", f"{extra}=1"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert f"-r {extra.lower()}.lock" in said and "-r gpu.lock" in said
    assert "-r cpu.lock" not in said


def test_the_compiler_for_gpus_is_of_the_cuda_that_torch_brings() -> None:
    locked = pins("gpu.lock")
    for name in (*COMPILER, "nvidia-cuda-runtime"):
        assert locked[name].startswith(f"{CUDA}."), name


def test_transformer_engine_is_compiled_after_the_lock_and_changes_none_of_its_packages(
    tmp_path: Path,
) -> None:
    (tmp_path / ".venv").mkdir()
    for name in ("Makefile", "gpu.lock", "cpu.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv" / ".ready-gpu").touch()
    command = ["make", "-n", "setup", "GPU=1", "TE=1", "UV="]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    said = " ".join(done.stdout.replace("\\\n", " ").split())
    assert '-c .venv/gpu.constraints "transformer-engine[core_cu13,pytorch]==' in said
    assert "--no-build-isolation" in said and "CUDA_HOME=" in said
    made = re.search(r"sed '[^']*' gpu\.lock", said)
    assert made is not None
    constraints = subprocess.run(["sh", "-c", made[0]], cwd=tmp_path, capture_output=True, text=True).stdout
    assert f"torch=={pins('gpu.lock')['torch']}\n" in constraints and "--hash" not in constraints


def test_transformer_engine_without_gpus_is_refused(tmp_path: Path) -> None:
    done = make(tmp_path, "-n", "setup", "TE=1")
    assert done.returncode == 2 and "TE=1 is for GPUs: make setup GPU=1 TE=1" in done.stderr
