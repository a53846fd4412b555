"""A call that does not return is named while it blocks; how long a stage took before is remembered."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.observe.terminal import stage
from asyncrl.observe.terminal.stage import PastSeconds
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


def test_the_median_of_the_last_times_is_expected(tmp_path: Path) -> None:
    past = PastSeconds(tmp_path / "past.json")
    assert past.expected("start") is None
    for seconds in (100.0, 100.0, 100.0, 9.0, 10.0, 12.0, 11.0, 10.5):
        past.note("start", seconds)
    assert PastSeconds(tmp_path / "past.json").expected("start") == 10.5


def test_things_noted_longest_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "MOST_THINGS", 2)
    past = PastSeconds(tmp_path / "past.json")
    for like in ("a", "b", "a", "c"):
        past.note(like, 1.0)
    assert [past.expected(like) for like in "abc"] == [1.0, None, 1.0]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"start": "soon"}', '{"start": ["soon"]}', "\udc80"])
def test_a_damaged_file_is_no_estimate_and_is_written_again(tmp_path: Path, content: str) -> None:
    file = tmp_path / "past.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    past = PastSeconds(file)
    assert past.expected("start") is None
    past.note("start", 2.0)
    assert past.expected("start") == 2.0


def test_where_nothing_can_be_written_there_is_no_estimate_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")
    past = PastSeconds(tmp_path / "cache" / "past.json")
    past.note("start", 2.0)
    assert past.expected("start") is None
