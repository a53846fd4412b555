"""Progress of what comes before the first step."""

import io

import pytest
from rich.console import Console

from asyncrl.observe.terminal.stage import stage


class Clock:
    """Advances by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def plain() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=False, width=80), file


def test_without_a_terminal_a_stage_is_a_line_at_its_start_and_its_end() -> None:
    screen, file = plain()
    clock = Clock()
    with stage("rollout servers", 2, console=screen, clock=clock) as bar:
        bar.advance()
        clock.seconds = 12.0
    assert file.getvalue().splitlines() == ["start   rollout servers", "done    rollout servers in 12 s"]


def test_without_a_terminal_a_long_stage_reports_every_ten_seconds() -> None:
    screen, file = plain()
    clock = Clock()
    with stage("base model", console=screen, clock=clock) as bar:
        for second in range(26):
            clock.seconds = float(second)
            bar.report("pre-training", second, 25)
    middle = file.getvalue().splitlines()[1:-1]
    assert middle == ["        pre-training 40%", "        pre-training 80%"]


def test_the_longer_a_stage_takes_the_fewer_lines_it_writes() -> None:
    screen, file = plain()
    clock = Clock()
    with stage("base model", console=screen, clock=clock) as bar:
        for second in range(3601):
            clock.seconds = float(second)
            bar.report("pre-training", second, 3600)
    assert 20 < len(file.getvalue().splitlines()) < 40


def test_a_forced_terminal_that_is_none_gets_plain_lines() -> None:
    file = io.StringIO()
    screen = Console(file=file, force_terminal=True, width=80, color_system=None)
    with stage("base model", 4, console=screen, clock=Clock()) as bar:
        bar.advance(4)
    assert file.getvalue().splitlines() == ["start   base model", "done    base model in 0.0 s"]


def test_of_a_stage_that_is_stopped_nothing_is_said() -> None:
    screen, file = plain()
    with pytest.raises(KeyboardInterrupt), stage("rollout servers", console=screen):
        raise KeyboardInterrupt
    assert file.getvalue().splitlines() == ["start   rollout servers"]


def test_a_stage_that_raises_is_shown_as_failed_and_still_raises() -> None:
    screen, file = plain()
    with pytest.raises(RuntimeError, match="port taken"):
        with stage("rollout servers", console=screen, clock=Clock()):
            raise RuntimeError("port taken")
    assert file.getvalue().splitlines()[-1] == "failed  rollout servers after 0.0 s"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_bar_leaves_one_line_behind() -> None:
    file = Terminal()
    screen = Console(file=file, force_terminal=True, width=80, color_system=None)
    with stage("base model", 4, console=screen, clock=Clock()) as bar:
        bar.advance(4)
    assert "100%" in file.getvalue()
    assert file.getvalue().splitlines()[-1].endswith("done    base model in 0.0 s")
