"""The last resort of a run that was asked to stop."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.controller.controller import ENDING_SECONDS
from asyncrl.controller.status_writer import LAST_SECONDS
from asyncrl.launch import servers, trackers
from asyncrl.launch.stopping import LastResort, Phase, phases_of_stop

SCRIPT = """
import asyncio, signal, sys, threading, time
from asyncrl.launch.stopping import LastResort, Phase

async def main(last_resort):
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: print("asked", flush=True))
    last_resort.watch(signal.SIGTERM)
    print("up", flush=True)
    {how}

phases = [Phase("the step", {seconds}), Phase("the report", 1000)]
with LastResort(phases, hurried_seconds=0.5) as last_resort:
    asyncio.run(main(last_resort))
print("ended", flush=True)
"""


def stop(how: str, *, seconds: float) -> tuple[int, str, str]:
    """Exit code and output of a process that got SIGTERM during `how`; `seconds` later it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(how=how, seconds=seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    said, complained = process.communicate(timeout=300)
    return process.returncode, said, complained


@pytest.mark.parametrize("how", ["time.sleep(1000)", "while True: pass", "await asyncio.sleep(1000)"])
def test_whatever_holds_the_process_it_ends(how: str) -> None:
    code, said, complained = stop(how, seconds=0.5)
    assert code == 130
    assert "ended" not in said
    assert "the step did not end within 0.5 s" in complained and "resumes" in complained


def test_an_orderly_end_is_left_alone_and_the_loop_hears_the_signal_too() -> None:
    code, said, complained = stop("await asyncio.sleep(0.2)", seconds=60)
    assert (code, complained) == (0, "")
    assert said == "asked\nended\n"


class DrivenTimers:
    """A clock that the test moves; timers end what they were made for when it reaches them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[DrivenTimer] = []
        self.exit_codes: list[int] = []

    def __call__(self, seconds: float, end: Callable[[], None]) -> "DrivenTimer":
        self.timers.append(DrivenTimer(self.now + seconds, end))
        return self.timers[-1]

    def move_to(self, now: float) -> None:
        self.now = now
        for timer in self.timers:
            if timer.is_on and timer.at <= now:
                timer.is_on = False
                timer.end()


class DrivenTimer:
    daemon = False

    def __init__(self, at: float, end: Callable[[], None]) -> None:
        self.at, self.end, self.is_on = at, end, False

    def start(self) -> None:
        self.is_on = True

    def cancel(self) -> None:
        self.is_on = False


@pytest.fixture
def timers() -> DrivenTimers:
    return DrivenTimers()


@pytest.fixture
def last_resort(timers: DrivenTimers) -> LastResort:
    phases = [Phase("the step", 4.0), Phase("the servers", 8.0), Phase("the report", 10.0)]
    return LastResort(phases, hurried_seconds=5.0, timer=timers, end=timers.exit_codes.append)


def test_each_phase_of_a_stop_has_its_own_time_whatever_the_one_before_took(
    timers: DrivenTimers, last_resort: LastResort, capfd: pytest.CaptureFixture[str]
) -> None:
    last_resort.begin()
    timers.move_to(3.9)
    last_resort.next_phase()
    timers.move_to(11.8)
    last_resort.next_phase()
    timers.move_to(21.7)
    assert timers.exit_codes == []
    timers.move_to(21.9)
    assert timers.exit_codes == [130]
    assert "the report did not end within 10 s: the rest is killed" in capfd.readouterr().err


def test_a_phase_that_takes_too_long_ends_the_process_and_is_named(
    timers: DrivenTimers, last_resort: LastResort, capfd: pytest.CaptureFixture[str]
) -> None:
    last_resort.begin()
    timers.move_to(1.0)
    last_resort.next_phase()
    timers.move_to(9.1)
    assert timers.exit_codes == [130]
    assert "the servers did not end within 8 s" in capfd.readouterr().err


def test_a_run_that_is_not_stopped_has_all_the_time_and_a_late_stop_that_of_its_phase(
    timers: DrivenTimers, last_resort: LastResort
) -> None:
    timers.move_to(1_000.0)
    last_resort.next_phase()
    timers.move_to(2_000.0)
    assert timers.exit_codes == []
    last_resort.begin()
    timers.move_to(2_007.9)
    assert timers.exit_codes == []
    timers.move_to(2_008.0)
    assert timers.exit_codes == [130]


def test_a_second_signal_leaves_one_short_time_for_all_phases(
    timers: DrivenTimers, last_resort: LastResort
) -> None:
    last_resort.begin()
    last_resort.next_phase()
    timers.move_to(3.0)
    last_resort.begin()
    timers.move_to(7.9)
    last_resort.next_phase()
    assert timers.exit_codes == []
    timers.move_to(8.0)
    assert timers.exit_codes == [130]


def test_an_end_in_time_leaves_no_timer(timers: DrivenTimers, last_resort: LastResort) -> None:
    with last_resort:
        last_resort.begin()
    timers.move_to(100.0)
    assert timers.exit_codes == []


def test_the_time_of_the_step_is_that_of_the_recipe_and_what_streams_has_beside_it() -> None:
    step, processes, report = phases_of_stop(60.0)
    assert step.seconds == 60.0 + ENDING_SECONDS
    # Servers are killed after their grace, trackers after theirs, one after the other.
    assert processes.seconds > servers.STOP_SECONDS + trackers.HURRIED_SECONDS + 2 * LAST_SECONDS
    assert report.seconds > 0
