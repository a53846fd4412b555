"""A verifier that is silent is named with the time, each time that it has doubled."""

import pytest
from fakes.clock import Clock

from asyncrl.rollout.verdict_waits import VerdictWaits


def look_for(waits: VerdictWaits, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.seconds += 1
        waits.look()


def test_a_silent_verifier_is_named_with_the_time_and_again_when_it_has_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(100.0)
    waits = VerdictWaits(clock=clock)
    with waits.waiting("./v.py:V"), waits.waiting("./v.py:V"):
        look_for(waits, clock, 45)
    assert [message.split("a verdict")[0] for message in caplog.messages[:3]] == [
        f'waiting for the verifier "./v.py:V": {seconds} s without ' for seconds in (10, 20, 40)
    ]
    assert "2 responses wait" in caplog.messages[0]
    assert caplog.messages[3:] == ['the verifier "./v.py:V" answers again, after 45 s.']


def test_verdicts_that_keep_coming_say_nothing_however_long_each_of_them_takes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(100.0)
    waits = VerdictWaits(clock=clock)
    with waits.waiting("judge"):
        for _ in range(10):
            with waits.waiting("judge"):
                look_for(waits, clock, 9)
    # Of another verifier they say nothing.
    with waits.waiting("silent"):
        for _ in range(2):
            with waits.waiting("judge"):
                look_for(waits, clock, 9)
    assert [message.split('"')[1] for message in caplog.messages] == ["silent", "silent"]


def test_nothing_is_silent_while_no_response_waits(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(100.0)
    waits = VerdictWaits(clock=clock)
    with waits.waiting("math"):
        look_for(waits, clock, 5)
    look_for(waits, clock, 100)
    with waits.waiting("math"):
        look_for(waits, clock, 5)
    assert caplog.messages == []
