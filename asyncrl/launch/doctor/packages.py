"""Installed packages against what asyncrl pins and what its lock lists."""

import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from asyncrl.errors import InputError
from asyncrl.launch.doctor.probe import Finding, broken, lost, ok
from asyncrl.system.distribution import check_distribution, check_plugin
from asyncrl.system.environment import ENGINES
from asyncrl.system.machine import torch_is_cpu_build

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


def owners(checks: Sequence[Callable[[], None]] = (check_distribution, check_plugin)) -> Iterator[Finding]:
    """Whether `verifiers`, `sandbox` and the plugin of SGLang are those of asyncrl."""
    for check in checks:
        try:
            check()
        except InputError as error:
            found, _, fix = str(error).partition(". ")
            yield broken("own packages", found, "No command runs, or servers start without the plugin.", fix)
            return
    yield ok("own packages", "verifiers, sandbox and the plugin of SGLang are asyncrl's")


def pins(
    requirements: Callable[[], list[str]] = own_requirements, *, version_of: Installed = installed_version
) -> Iterator[Finding]:
    """The versions that pyproject.toml asks for."""
    wrong = [flaw for text in requirements() if (flaw := _flaw(text, version_of))]
    if wrong:
        yield broken(
            "pinned packages",
            _listed(wrong),
            "Hooks in SGLang and the trainer's use of Megatron-core are made for the pinned versions: "
            "servers or ranks may end as they start, or compute something else.",
            FIX,
        )
        return
    engines = ", ".join(f"{name} {version_of(name)}" for name in ENGINES)
    yield ok("pinned packages", f"{engines}, Python {platform.python_version()}")


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
) -> Iterator[Finding]:
    """Every package of the lock; others may be installed beside them."""
    path = lock()
    if path is None:
        yield ok("locked packages", "no lock: asyncrl was installed from a wheel")
        return
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
        yield lost(
            "locked packages",
            f"{len(wrong)} of {num} differ from {path.name}: {_listed(wrong)}",
            "The tests ran with the versions of the lock; with others results may differ.",
            FIX,
        )
        return
    yield ok("locked packages", f"all {num} of {path.name}")


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
