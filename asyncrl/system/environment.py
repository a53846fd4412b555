"""Environment of a run: packages, Python, machine, the commit of asyncrl, and whether what is installed is
what is here. Imports no torch.
"""

import importlib.metadata
import importlib.util
import platform
import subprocess
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from asyncrl.errors import InputError
from asyncrl.system.machine import machine_memory
from sandbox.own_groups import available_cores

# Others use the names `verifiers` and `sandbox` too: PyPI's `verifiers` is a library of this very field.
# Looked at before any command imports either, by where they are found and what their `__init__.py` says,
# which takes less than a millisecond.
PACKAGES = ("verifiers", "sandbox")
PLUGINS = "sglang.srt.plugins"
"""Group of entry points."""
MARK = "Part of asyncrl."
"""Stands in the `__init__.py` of both: another distribution that is installed over them replaces it."""


def check_distribution() -> None:
    """Raises InputError that names the distribution whose package would be imported, and the way out."""
    home = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        places = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
        if any(place.resolve() == home / name and _is_ours(place) for place in places[:1]):
            continue
        raise InputError(
            f'"import {name}" finds {_owner(name, places)}, not the package of asyncrl at {home / name}. '
            f"Install asyncrl in a separate environment, and first on PYTHONPATH if that is set. A "
            f"verifier that needs the other package runs in another environment: verifier `remote`."
        )


def check_plugin() -> None:
    """Raises InputError where the installation names a plugin of SGLang that is not there: the files of an
    editable one are newer than what was installed of it."""
    for entry in importlib.metadata.entry_points(group=PLUGINS, name="asyncrl"):
        try:
            is_there = importlib.util.find_spec(entry.module) is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            raise InputError(
                f"asyncrl was installed with the SGLang plugin {entry.value}, which is not there: its files "
                f"have changed since, and servers would start without it. Run `make setup` again."
            )


def _is_ours(folder: Path) -> bool:
    try:
        return MARK in (folder / "__init__.py").read_text(encoding="utf-8")
    except OSError:
        return False


def _owner(name: str, places: list[Path]) -> str:
    owners = importlib.metadata.packages_distributions().get(name, [])
    others = sorted({owner for owner in owners if owner != "asyncrl"})
    at = f" at {places[0]}" if places else ""
    return f"the one of distribution {', '.join(others)}{at}" if others else f"another one{at or ', or none'}"


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
        cpu=_cpu(),
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


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


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
