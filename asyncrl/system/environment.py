"""Environment of a run: packages, Python, machine, the commit of asyncrl. Imports no torch."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from asyncrl.system.machine import cpu_name, machine_memory
from sandbox.cgroup import available_cores

ENGINES = ("torch", "megatron-core", "sglang", "transformers")
"""Packages that compute what a run trains."""
DRIVER = Path("/proc/driver/nvidia/version")
GIT_SECONDS = 10.0


class Environment(BaseModel):
    """Environment of one process, on one machine."""

    model_config = ConfigDict(extra="forbid")

    asyncrl: str
    """Its version."""
    commit: str | None
    """Commit of the git checkout that asyncrl runs from; null where it runs from no checkout."""
    has_local_changes: bool | None
    """Whether tracked files differ from that commit."""
    python: str
    platform: str
    cpu: str
    num_cores: int
    """Cores that this process may use."""
    memory_gib: float
    gpus: list[str]
    """Names of those that the run uses; empty on a CPU."""
    gpu_driver: str | None
    packages: dict[str, str]
    """Name -> version of every installed distribution, as pip freeze lists them."""


def describe_environment(gpus: list[str]) -> Environment:
    """Describes this process; `gpus` are the names of those that its run uses. About 0.1 s of work."""
    commit, is_changed = _checkout(Path(__file__).resolve().parents[2])
    return Environment(
        asyncrl=importlib.metadata.version("asyncrl"),
        commit=commit,
        has_local_changes=is_changed,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_name() or platform.machine(),
        num_cores=available_cores(),
        memory_gib=round(machine_memory().total / 2**30, 1),
        gpus=gpus,
        gpu_driver=DRIVER.read_text().partition("\n")[0] if DRIVER.is_file() else None,
        packages=_packages(),
    )


def differences(recorded: Environment, now: Environment) -> list[str]:
    """A sentence for each field and each package that is not as recorded."""
    found = [
        f"{name}: recorded {before!r}, here {after!r}"
        for name in Environment.model_fields
        if name != "packages" and (before := getattr(recorded, name)) != (after := getattr(now, name))
    ]
    for name in sorted({*recorded.packages, *now.packages}):
        before, after = recorded.packages.get(name), now.packages.get(name)
        if before != after:
            found.append(f"package {name}: recorded {before or 'none'}, here {after or 'none'}")
    return found


def changed_engines(before: Environment, now: Environment) -> str | None:
    """A sentence for a person where what computes a run has another version than in its last start."""
    old, new = ({"python": each.python, **each.packages} for each in (before, now))
    found = [
        f"{name} {new.get(name, 'none')} (before: {old.get(name, 'none')})"
        for name in ("python", *ENGINES)
        if old.get(name) != new.get(name)
    ]
    if not found:
        return None
    return (
        f"the run resumes under {', '.join(found)}: its numbers may differ from those of its earlier steps "
        f"by more than noise"
    )


def _packages() -> dict[str, str]:
    metadata = [dist.metadata for dist in importlib.metadata.distributions()]
    # What a broken installation leaves behind has neither.
    found = {str(each["Name"]): str(each["Version"]) for each in metadata if each["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _checkout(root: Path) -> tuple[str | None, bool | None]:
    """(commit, whether it has local changes); (None, None) outside of a checkout or without git."""
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit.strip(), None if changed is None else bool(changed.strip())


def _git(root: Path, *words: str) -> str | None:
    """Output of git; None where it is not installed, refuses, or takes too long."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
