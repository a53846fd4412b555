"""The isolation that `asyncrl sandbox doctor` measures, in a process of its own."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from asyncrl.launch.doctor.finding import Finding, lost, ok
from asyncrl.launch.doctor.probe import output_of

SANDBOX_SECONDS = 120.0
"""For a pool, its interpreter and nine programs, on a busy machine."""


def measured() -> dict[str, Any]:
    """The answer of `asyncrl sandbox doctor --json`. Raises ValueError, OSError and TimeoutExpired."""
    command = [sys.executable, "-P", "-m", "asyncrl.cli", "sandbox", "doctor", "--json"]
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
            "sandbox",
            "; ".join(f"{each['name']}: {each['note']}" for each in tiers) or "no tier",
            "Untrusted programs are refused: the verifier code, the tool python and their recipes.",
            detail,
        )
        return
    for each in tiers:
        yield lost(
            "sandbox",
            f"tier {said['tier']}; {each['name']} is not to be had",
            "Programs read the host's /usr and interpreter; disk and processes are sampled, not bounded.",
            each["note"].rpartition("To enable: ")[2] or detail,
        )
    for each in missing:
        if each not in tiers:
            yield lost(
                "sandbox", f"{each['name']}: {each['note']}", "The sandbox does not enforce it here.", detail
            )
    if not missing:
        yield ok("sandbox", f"tier {said['tier']}, every layer holds; not enforced: {len(said['gaps'])}")
