"""The clocks, driven by the test."""

from collections.abc import Sequence

from asyncrl.launch.doctor.hardware import Clocks, clock
from asyncrl.launch.doctor.probe import Finding, State

NOW = 1_795_000_000.0
"""In November 2026."""


def look(wall: Sequence[float], *, step: float = 0.2, keeps: bool | None = True) -> Finding:
    monotonic, walls = iter([10.0, 10.0 + step]), iter(wall)
    clocks = Clocks(lambda: next(monotonic), lambda: next(walls), lambda seconds: None, lambda: keeps)
    (found,) = clock(clocks)
    return found


def test_clocks_that_agree_are_fine() -> None:
    for keeps in (True, None):
        assert look([NOW, NOW + 0.2, NOW + 0.2], keeps=keeps).state is State.OK


def test_a_wall_clock_that_jumps_spoils_times() -> None:
    found = look([NOW, NOW + 3.0, NOW + 3.0])
    assert found.state is State.LOST and found.found == "the wall clock moved by 3.00 s in 0.20 s"


def test_a_wall_clock_of_another_year_spoils_certificates() -> None:
    found = look([1000.0, 1000.2, 1000.2])
    assert found.state is State.LOST and "HTTPS" in found.consequence


def test_a_clock_that_nothing_keeps_right_differs_from_those_of_other_machines() -> None:
    found = look([NOW, NOW + 0.2, NOW + 0.2], keeps=False)
    assert found.state is State.LOST and "several machines" in found.consequence


def test_a_monotonic_clock_that_stands_still_is_broken() -> None:
    assert look([NOW, NOW, NOW], step=0.0).state is State.BROKEN
