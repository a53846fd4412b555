"""The settings of tests/conftest.py: which files are left out or share a process, what properties need."""

import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import EACH_ALONE, GROUPS, HEAVY, TYPICAL

TESTS = Path(__file__).parent


def test_each_place_that_the_lists_name_is_there() -> None:
    assert [name for name in (*HEAVY, *TYPICAL, *GROUPS, *EACH_ALONE) if not (TESTS / name).exists()] == []


def test_no_property_depends_on_the_speed_of_the_machine() -> None:
    current = settings()
    assert current.deadline is None and HealthCheck.too_slow in current.suppress_health_check


def test_draws_that_take_longer_than_a_busy_machine_makes_them_fail_nothing() -> None:
    now = [0.0]

    def slow(number: int) -> int:
        now[0] += 1.0
        return number

    # Hypothesis reads this clock; it would call draws of a second each too slow.
    clock = time.perf_counter
    time.perf_counter = lambda: clock() + now[0]  # type: ignore[assignment]
    try:
        given(st.integers().map(slow))(lambda number: None)()
    finally:
        time.perf_counter = clock
