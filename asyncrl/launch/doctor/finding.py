"""A line of `asyncrl doctor`: what was looked at, what was found, and the consequence with the fix."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    LOST = "lost"
    """Runs work, and lack something: speed, isolation, a kind of run."""
    BROKEN = "broken"
    """Runs fail, or kinds of them that this machine is for."""


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    state: State
    found: str
    consequence: str = ""
    """A sentence. Empty where nothing is lost."""
    fix: str = ""
    """A sentence. Empty where nothing is lost."""


def ok(what: str, found: str) -> Finding:
    return Finding(what, State.OK, found)


def lost(what: str, found: str, consequence: str, fix: str) -> Finding:
    return Finding(what, State.LOST, found, consequence, fix)


def broken(what: str, found: str, consequence: str, fix: str) -> Finding:
    return Finding(what, State.BROKEN, found, consequence, fix)


def worst(findings: list[Finding]) -> State:
    """The state of the machine."""
    order = list(State)
    return max((finding.state for finding in findings), key=order.index, default=State.OK)
