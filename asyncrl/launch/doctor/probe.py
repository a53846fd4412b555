"""Probes of `asyncrl doctor`, side by side, and the lines that they find."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    """Empty: the name of the probe."""
    state: State
    found: str
    consequence: str = ""
    """A sentence. Empty where nothing is lost."""
    fix: str = ""
    """A sentence. Empty where nothing is lost."""


def ok(found: str, *, what: str = "") -> Finding:
    return Finding(what, State.OK, found)


def lost(found: str, consequence: str, fix: str, *, what: str = "") -> Finding:
    return Finding(what, State.LOST, found, consequence, fix)


def broken(found: str, consequence: str, fix: str, *, what: str = "") -> Finding:
    return Finding(what, State.BROKEN, found, consequence, fix)


def worst(findings: list[Finding]) -> State:
    """The state of the machine."""
    order = list(State)
    return max((finding.state for finding in findings), key=order.index, default=State.OK)


TOLD_SECONDS = 1.0
"""Wait for a probe after which a line says that it is waited for."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A look at one part of the machine."""

    what: str
    look: Callable[[], Finding | Iterable[Finding]]
    seconds: float
    """Time limit."""
    without: State = State.LOST
    """The machine's state where it does not end in time, or raises."""


@dataclass(slots=True)
class _Running:
    probe: Probe
    ended: threading.Event = field(default_factory=threading.Event)
    findings: list[Finding] = field(default_factory=list)

    def look(self) -> None:
        try:
            found = self.probe.look()
            all_found = [found] if isinstance(found, Finding) else found
            self.findings = [replace(each, what=each.what or self.probe.what) for each in all_found]
        except Exception as error:  # handed to the owner as a line
            said = " ".join(str(error).split())[:300]
            self.findings = [
                Finding(
                    self.probe.what,
                    self.probe.without,
                    f"could not be looked at: {type(error).__name__}: {said}",
                    "Nothing is known of it.",
                    "Correct what the error names; if it names nothing of yours, report it as a defect.",
                )
            ]
        finally:
            self.ended.set()

    def late(self) -> Finding:
        return Finding(
            self.probe.what,
            self.probe.without,
            f"no answer within {self.probe.seconds:g} s",
            "A run that needs it would hang as well.",
            "Run the doctor again when the machine is idle; if it hangs still, look at the kernel log "
            "(dmesg) and at network file systems.",
        )


def examine(probes: Sequence[Probe], *, waiting: Callable[[Probe], None]) -> Iterator[Finding]:
    """The findings of all probes, in the order of `probes`; `waiting` is called once for each probe that
    keeps its turn waiting for longer than TOLD_SECONDS."""
    began, running = time.monotonic(), [_Running(probe) for probe in probes]
    for each in running:
        threading.Thread(target=each.look, name=f"probe {each.probe.what}", daemon=True).start()
    for each in running:
        left = each.probe.seconds - (time.monotonic() - began)
        if not each.ended.wait(max(0.0, min(TOLD_SECONDS, left))) and left > TOLD_SECONDS:
            waiting(each.probe)
            each.ended.wait(max(0.0, each.probe.seconds - (time.monotonic() - began)))
        yield from each.findings if each.ended.is_set() else [each.late()]


def output_of(command: Sequence[str], *, seconds: float) -> subprocess.CompletedProcess[str]:
    """The output of a program. Raises OSError, and TimeoutExpired when it was killed for taking longer."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=seconds,
        check=False,
        errors="replace",
    )
