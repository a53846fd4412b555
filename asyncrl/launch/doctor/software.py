"""Software: installed packages against pins and lock, what the sandbox enforces, an engine of containers."""

import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from asyncrl.errors import InputError
from asyncrl.launch.doctor.probe import Finding, broken, lost, ok, output_of
from asyncrl.system.machine import ENGINES, torch_is_cpu_build
from asyncrl.system.places import check_distribution, check_plugin
from asyncrl.turns.environments.boxes import ENGINES as CONTAINER_ENGINES

ROOT = Path(__file__).resolve().parents[3]
"""The checkout; an installed wheel has no lock there."""
NAMED = 6
"""Differences that a line names."""
FIX = "Run make setup again (GPU=1 for GPUs), or install what is named."

Installed = Callable[[str], str | None]


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def own_requirements() -> list[str]:
    """Requirements of asyncrl itself; those of extras carry a marker."""
    return importlib.metadata.requires("asyncrl") or []


def owners(checks: Sequence[Callable[[], None]] = (check_distribution, check_plugin)) -> Finding:
    """Whether `verifiers`, `sandbox` and the plugin of SGLang are those of asyncrl."""
    for check in checks:
        try:
            check()
        except InputError as error:
            found, _, fix = str(error).partition(". ")
            return broken(found, "No command runs, or servers start without the plugin.", fix)
    return ok("verifiers, sandbox and the plugin of SGLang are asyncrl's")


def pins(
    requirements: Callable[[], list[str]] = own_requirements, *, version_of: Installed = installed_version
) -> Finding:
    """The versions that pyproject.toml asks for."""
    wrong = [flaw for text in requirements() if (flaw := _flaw(text, version_of))]
    if wrong:
        return broken(
            _listed(wrong),
            "Hooks in SGLang and the trainer's use of Megatron-core are made for the pinned versions: "
            "servers or ranks may end as they start, or compute something else.",
            FIX,
        )
    engines = ", ".join(f"{name} {version_of(name)}" for name in ENGINES)
    return ok(f"{engines}, Python {platform.python_version()}")


def _flaw(text: str, version_of: Installed) -> str | None:
    """The flaw of the installed version of a requirement; None where it has none."""
    requirement = Requirement(text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    there = version_of(requirement.name)
    if there is None:
        return f"{requirement.name} is missing ({requirement.specifier or 'any version'})"
    if not requirement.specifier.contains(there, prereleases=True):
        return f"{requirement.name} {there} (expected {requirement.specifier})"
    return None


def lock_file() -> Path | None:
    """The lock of this environment's build; None without a checkout."""
    path = ROOT / ("cpu.lock" if torch_is_cpu_build() else "gpu.lock")
    return path if path.is_file() else None


def locked(
    lock: Callable[[], Path | None] = lock_file, *, version_of: Installed = installed_version
) -> Finding:
    """Every package of the lock; others may be installed beside them."""
    path = lock()
    if path is None:
        return ok("no lock: asyncrl was installed from a wheel")
    wrong: list[str] = []
    num = 0
    for name, wanted in _locked(path):
        num += 1
        there = version_of(name)
        if there is None:
            wrong.append(f"{name} is missing ({wanted})")
        elif not _is_same(there, wanted):
            wrong.append(f"{name} {there} (lock: {wanted})")
    if wrong:
        return lost(
            f"{len(wrong)} of {num} differ from {path.name}: {_listed(wrong)}",
            "The tests ran with the versions of the lock; with others results may differ.",
            FIX,
        )
    return ok(f"all {num} of {path.name}")


def _locked(path: Path) -> Iterator[tuple[str, str]]:
    """(name, version) of each line that is for this Python and machine."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].partition(" --hash")[0].strip()
        if not text:
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate():
            for specifier in requirement.specifier:
                yield requirement.name, specifier.version


def _is_same(there: str, wanted: str) -> bool:
    """Whether versions are equal, local parts such as "+cpu" apart."""
    try:
        return Version(there).public == Version(wanted).public
    except InvalidVersion:
        return there == wanted


def _listed(words: Sequence[str]) -> str:
    rest = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


CONTAINER_SECONDS = 20.0
SANDBOX_SECONDS = 120.0
"""For a pool, its interpreter and nine programs, on a busy machine."""


def containers(
    which: Callable[[str], str | None] = shutil.which,
    ask: Callable[..., "subprocess.CompletedProcess[str]"] = output_of,
) -> Finding:
    """The engine that the environment container would use for rows with an image, if it answers."""
    engine = next((name for name in CONTAINER_ENGINES if which(name)), None)
    loss = "Tasks with an image are refused (environment container); others run in the sandbox."
    if engine is None:
        return lost("neither podman nor docker", loss, "Install podman; it needs no root.")
    try:
        done = ask([engine, "info"], seconds=CONTAINER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return lost(f"`{engine} info`: {error}", loss, f"Correct {engine}'s installation.")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no words"])[-1]
        return lost(f"`{engine} info`: {last}", loss, f"Start {engine}, or install podman.")
    return ok(f"{engine} answers")


def measured() -> dict[str, Any]:
    """The answer of `asyncrl sandbox doctor --json`. Raises ValueError, OSError and TimeoutExpired."""
    command = [sys.executable, "-P", "-m", "asyncrl.commands.main", "sandbox", "doctor", "--json"]
    done = output_of(command, seconds=SANDBOX_SECONDS)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ValueError(f"`asyncrl sandbox doctor` ended with exit code {done.returncode}: {last}") from None
    return answer


def sandbox(measure: Callable[[], dict[str, Any]] = measured) -> Iterator[Finding]:
    """Its tier, and the layers that do not hold."""
    said = measure()
    missing = [each for each in said["layers"] if not each["holds"]]
    tiers = [each for each in missing if each["name"].startswith("tier ")]
    detail = "`asyncrl sandbox doctor` says what holds back what."
    if said["tier"] is None:
        yield lost(
            "; ".join(f"{each['name']}: {each['note']}" for each in tiers) or "no tier",
            "Untrusted programs are refused: the verifier code, the tool python and their recipes.",
            detail,
        )
        return
    for each in tiers:
        yield lost(
            f"tier {said['tier']}; {each['name']} is not to be had",
            "Programs read the host's /usr and interpreter; disk and processes are sampled, not bounded.",
            each["note"].rpartition("To enable: ")[2] or detail,
        )
    for each in missing:
        if each not in tiers:
            yield lost(f"{each['name']}: {each['note']}", "The sandbox does not enforce it here.", detail)
    if not missing:
        yield ok(f"tier {said['tier']}, every layer holds; not enforced: {len(said['gaps'])}")
