"""Result of one run of a program. The sandbox's own failure is never a Result: it is SandboxError."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class SandboxError(Exception):
    """The sandbox could not run the program (no worker, a broken zygote); says nothing about the program."""


class Tier(StrEnum):
    """By what the program was confined."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    UNSAFE = "unsafe"
    """Only by rlimits and its process group: must be asked for by name."""


class Status(StrEnum):
    """How a run ended."""

    OK = "ok"
    WRONG_EXIT = "wrong_exit"
    SIGNAL = "signal"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    REFUSED = "refused"
    """Not run: the machine offers no isolation and the unsafe mode was not asked for."""


def refusal(reasons: Mapping[Tier, str]) -> str:
    """Why nothing runs on this machine, by the reasons why it has no tier."""
    missing = "; ".join(f"{tier.value}: {reason}" for tier, reason in reasons.items())
    hint = "run `asyncrl sandbox doctor`, or allow the unsafe mode by name"
    return f"no isolation on this machine ({missing}); {hint}"


@dataclass(frozen=True)
class Result:
    """One run."""

    status: Status
    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = None
    """None unless the program ended by itself."""
    signal: int | None = None
    """The signal that ended it, if one did."""
    cpu_seconds: float = 0.0
    """User and system time of all its processes."""
    wall_seconds: float = 0.0
    peak_memory_bytes: int = 0
    """Resident memory of its largest process."""
    tier: Tier | None = None
    """None when refused."""
    phase: str = "run"
    """"compile" when the program did not compile: the status is the compiler's then."""
    detail: str = ""
    """Why, for people."""
    files: tuple[bytes, ...] = ()
    """The contents of the files that the command was asked to leave."""


_BLOBS = ("stdout", "stderr", "files")


def packed(result: Result) -> tuple[dict[str, Any], list[bytes]]:
    """The result as JSON carries it, and its bytes: stdout, stderr, files."""
    header = {name: getattr(result, name) for name in Result.__dataclass_fields__ if name not in _BLOBS}
    return header, [result.stdout, result.stderr, *result.files]


def unpacked(header: dict[str, Any], blobs: list[bytes]) -> Result:
    """Inverse of `packed`."""
    stdout, stderr, *files = blobs
    fields = {**header, "status": Status(header["status"]), "tier": Tier(header["tier"])}
    return Result(**fields, stdout=stdout, stderr=stderr, files=tuple(files))
