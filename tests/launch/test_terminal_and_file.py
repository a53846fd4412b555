"""What a person hears of a run: rows and warnings, at the terminal and in metrics.jsonl."""

import dataclasses
import errno
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.small_disk import refused_writes
from rich.console import Console

from asyncrl.launch.meters.memory import MemoryMeter
from asyncrl.launch.terminal_and_file import TerminalAndFile
from asyncrl.observe.alarms.learning import EmptySteps
from asyncrl.observe.alarms.rule import Alarm, Finding
from asyncrl.observe.alarms.watch import AlarmWatch
from asyncrl.observe.metrics.mishaps import RecentEvents
from asyncrl.observe.terminal.live import LiveLine
from asyncrl.run.metrics_file import MetricsWriter, read_metrics

log = logging.getLogger("asyncrl.serving.fleet")


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def told(tmp_path: Path, output: io.StringIO) -> Iterator[TerminalAndFile]:
    live = LiveLine(10, console=Console(file=output, width=200))
    with MetricsWriter(tmp_path / "metrics.jsonl") as metrics:
        yield TerminalAndFile(
            live, metrics, AlarmWatch([], run="run"), EmptySteps(10), MemoryMeter(), RecentEvents(), step=7
        )


def test_a_warning_of_any_part_is_shown_between_the_lines_and_kept(
    told: TerminalAndFile, output: io.StringIO, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with told:
        told.step({"step": 1})
        log.info("not for people")
        log.warning("server %s leaves: \x1b[2Jit died", "http://a:1")
        told.step({"step": 2})
    log.warning("after the run")
    shown = output.getvalue()
    assert (
        shown.index("1/10") < shown.index("server http://a:1 leaves: \\x1b[2Jit died") < shown.index("2/10")
    )
    assert "not for people" not in shown and "after the run" not in shown
    (event,) = read_metrics(tmp_path / "metrics.jsonl").events
    assert (event["event"], "server http://a:1 leaves" in event["text"]) == ("warning", True)
    assert (event["step"], event["count"]) == (1, 1)
    # Once, not on standard error too.
    assert "leaves" not in capfd.readouterr().err


def test_what_is_said_before_the_first_step_of_a_start_stands_at_the_step_that_it_resumes_at(
    told: TerminalAndFile, tmp_path: Path
) -> None:
    with told:
        log.warning("the journal is compacted")
        told.step({"step": 8})
        log.warning("server http://a:1 leaves")
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl").events] == [7, 8]


def test_an_alarm_stands_between_the_lines_and_in_the_file_and_a_repeated_one_does_not(
    told: TerminalAndFile, output: io.StringIO, tmp_path: Path
) -> None:
    begun = Alarm("capped_share", "alarms.capped_share", "curves", 3, Finding(0.07, 0.05, "7.0% are capped"))
    with told:
        for _ in range(2):
            told.alarm(begun)
        told.alarm(dataclasses.replace(begun, step=20, finding=None))
    first, last = read_metrics(tmp_path / "metrics.jsonl").events
    assert {name: first[name] for name in first if name != "time_seconds"} == {
        "kind": "event",
        "event": "alarm",
        "alarm": "capped_share",
        "step": 3,
        "text": "7.0% are capped",
        "value": 0.07,
        "limit": 0.05,
        "key": "alarms.capped_share",
        "view": "#/run/curves",
        "is_on": True,
        "is_first": True,
    }
    assert (last["is_on"], last["is_first"], last["step"]) == (False, False, 20)
    shown = output.getvalue()
    assert shown.count("alarm capped_share: 7.0% are capped; limit 0.05 (alarms.capped_share)") == 1
    assert shown.count("alarm capped_share is over") == 1


def test_an_alarm_is_no_record_of_the_log_and_stands_in_the_post_mortem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live, events = LiveLine(10, console=Console(file=io.StringIO(), width=200)), RecentEvents()
    begun = Alarm("capped_share", "alarms.capped_share", "curves", 3, Finding(0.07, 0.05, "7.0% are capped"))
    with MetricsWriter(tmp_path / "metrics.jsonl") as metrics:
        told = TerminalAndFile(
            live, metrics, AlarmWatch([], run="run"), EmptySteps(10), MemoryMeter(), events, step=7
        )
        told.alarm(begun)
        told.alarm(begun)
    (line,) = events.lines
    assert line.endswith(begun.words()) and caplog.records == []


class GoneTerminal(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_who_warns_does_not_fail_when_the_terminal_is_gone(tmp_path: Path) -> None:
    live = LiveLine(10, console=Console(file=GoneTerminal(), width=200))
    with (
        MetricsWriter(tmp_path / "metrics.jsonl") as metrics,
        TerminalAndFile(
            live, metrics, AlarmWatch([], run="run"), EmptySteps(10), MemoryMeter(), RecentEvents(), step=7
        ) as told,
    ):
        log.warning("stopping after the current step")
        with pytest.raises(OSError, match="Input/output error"):
            told.step({"step": 1})
    (event,) = read_metrics(tmp_path / "metrics.jsonl").events
    assert event["text"] == "stopping after the current step"


def test_who_warns_does_not_fail_when_the_disk_is_full(told: TerminalAndFile, output: io.StringIO) -> None:
    with told, refused_writes():
        log.warning("server a leaves")
    assert "server a leaves" in output.getvalue() and "Free up disk space" in output.getvalue()
