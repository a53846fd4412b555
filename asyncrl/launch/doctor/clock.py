"""The clocks: whether the monotonic one runs, the wall clock jumps, and something keeps it right."""

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from asyncrl.launch.doctor.finding import Finding, broken, lost, ok

WATCHED_SECONDS = 0.2
JUMP_SECONDS = 0.1
"""Difference of both clocks over WATCHED_SECONDS that is a jump, not a correction."""
OLDEST = 2026
"""A wall clock before this year is wrong."""
_TIMEX_BYTES = 256
"""More than struct timex has on any Linux."""
_UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""


def _kernel_keeps_time() -> bool | None:
    """Whether the kernel says that a program such as chrony keeps its clock right; None where it does not
    say."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # All zero: modes 0 only reads.
        state = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED


@dataclass(frozen=True, slots=True)
class Clocks:
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    keeps_time: Callable[[], bool | None] = _kernel_keeps_time


def clock(clocks: Clocks = Clocks()) -> Iterator[Finding]:
    """Watches both clocks for a moment."""
    began, began_wall = clocks.monotonic(), clocks.wall()
    clocks.sleep(WATCHED_SECONDS)
    passed, passed_wall = clocks.monotonic() - began, clocks.wall() - began_wall
    now = datetime.fromtimestamp(clocks.wall(), UTC)
    if passed <= 0:
        yield broken(
            "clock",
            f"the monotonic clock moved by {passed:g} s in {WATCHED_SECONDS:g} s",
            "Time limits of servers, verifiers and ranks never pass.",
            "Restart the machine; in a virtual machine choose another clock source (kvm-clock, tsc).",
        )
        return
    if abs(passed_wall - passed) > JUMP_SECONDS:
        yield lost(
            "clock",
            f"the wall clock moved by {passed_wall:.2f} s in {passed:.2f} s",
            "Times in logs, metrics and reports are wrong; time limits, which use the monotonic clock, hold.",
            "Let chrony or systemd-timesyncd slew the clock in place of setting it.",
        )
        return
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now.year < OLDEST:
        yield lost(
            "clock",
            shown,
            "Certificates are not valid yet on that day: nothing is fetched from a hub by HTTPS.",
            "Set the clock (timedatectl set-ntp true).",
        )
        return
    keeps = clocks.keeps_time()
    if keeps is False:
        yield lost(
            "clock",
            f"{shown}; nothing keeps it right (the kernel calls it unsynchronised)",
            "Times of several machines cannot be compared; a run on one machine loses nothing.",
            "Start chrony or systemd-timesyncd on the host.",
        )
        return
    yield ok("clock", f"{shown}, {'kept right' if keeps else 'no jump; whether it is kept right is unknown'}")
