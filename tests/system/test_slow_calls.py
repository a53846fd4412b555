"""A call of a user's code that does not return is named while it blocks, by its row."""

import subprocess
import sys

import pytest

from asyncrl.system.plugins import SlowCalls


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_call_is_named_after_some_seconds_and_each_time_that_it_has_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    calls = SlowCalls(clock=clock)
    with calls.call("parse_reference of v.py:V on train.jsonl:1"):
        for clock.seconds in (1, 4, 5, 6, 9, 10, 19, 20):
            calls.look()
    seconds = [message.split(" for ")[1].split(" s")[0] for message in caplog.messages]
    assert seconds == ["5", "10", "20"]
    assert all("parse_reference of v.py:V on train.jsonl:1 has not returned" in m for m in caplog.messages)


def test_many_short_calls_are_not_one_long_one(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    calls = SlowCalls(clock=clock)
    for number in range(20):
        with calls.call(f"row {number}"):
            clock.seconds += 3
            calls.look()
    calls.look()
    assert caplog.messages == []


def test_a_call_that_blocks_is_named_from_beside_it() -> None:
    program = """
import itertools, logging, sys
from asyncrl.system.plugins import SlowCalls

class Ended(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), flush=True)
        import os; os._exit(0)

logging.getLogger().addHandler(Ended())
seconds = itertools.count(step=100)
with SlowCalls(clock=lambda: next(seconds)).call("a loop without end"):
    while True: pass
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert "a loop without end has not returned for" in run.stdout, run.stderr
