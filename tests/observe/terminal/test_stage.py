"""Progress of what comes before the first step; how long a stage took before is remembered."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from asyncrl.observe.terminal.stage import LateStage, PastSeconds, Stage, stage


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
    assert middle == ["        pre-training 40%, 15 s left", "        pre-training 80%, 5.0 s left"]


def test_the_longer_a_stage_takes_the_fewer_lines_it_writes() -> None:
    screen, file = plain()
    clock = Clock()
    with stage("base model", console=screen, clock=clock) as bar:
        for second in range(3601):
            clock.seconds = float(second)
            bar.report("pre-training", second, 3600)
    assert 20 < len(file.getvalue().splitlines()) < 40


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


def test_what_is_left_is_estimated_by_the_pace_of_the_part_that_is_counted() -> None:
    clock = Clock()
    bar = Stage("base model", None, clock=clock)
    clock.seconds = 30.0
    bar.report("pre-training", 100, 400)
    assert (bar.share(), bar.left()) == ("25%", "")
    clock.seconds = 40.0
    bar.report("pre-training", 200, 400)
    assert (bar.share(), bar.left()) == ("50%", "20 s left")
    bar.report("checking", 0, 10)
    assert (bar.share(), bar.left()) == ("0%", "")


def test_of_a_stage_without_counts_the_bar_says_neither_a_share_nor_what_is_left() -> None:
    file, clock = Terminal(), Clock()
    screen = Console(file=file, force_terminal=True, width=80, color_system=None)
    with stage("rollout servers", console=screen, clock=clock):
        clock.seconds = 7.0
    assert "rollout servers" in file.getvalue()
    assert "%" not in file.getvalue() and "left" not in file.getvalue()


def test_a_stage_says_how_long_it_usually_takes_once_it_was_there_before(tmp_path: Path) -> None:
    past, clock = PastSeconds(tmp_path / "cache" / "past_seconds.json"), Clock()
    for seconds in (9.0, 11.0, 60.0):
        with stage("servers", console=plain()[0], clock=clock, like="two servers", past=past):
            clock.seconds += seconds
    with pytest.raises(RuntimeError), stage("servers", clock=clock, like="two servers", past=past):
        clock.seconds += 1000.0
        raise RuntimeError("one that fails says nothing of how long it takes")
    screen, file = plain()
    with stage("servers", console=screen, clock=clock, like="two servers", past=past) as bar:
        clock.seconds += 4.0
        assert bar.left() == "7.0 s left"
        clock.seconds += 20.0
        assert bar.left() == "usually 11 s"
    assert file.getvalue().splitlines() == ["start   servers, usually 11 s", "done    servers in 24 s"]
    with stage("servers", console=plain()[0], clock=clock, like="three servers", past=past) as other:
        assert other.left() == ""


def test_a_stage_that_ends_because_it_was_asked_to_is_not_done_and_no_measure(tmp_path: Path) -> None:
    past, clock, (screen, file) = PastSeconds(tmp_path / "past.json"), Clock(), plain()
    with stage("servers", console=screen, clock=clock, like="servers", past=past) as bar:
        clock.seconds = 2.0
        bar.is_stopped = True
    assert file.getvalue().splitlines() == ["start   servers"]
    assert past.expected("servers") is None


def test_a_bar_of_standard_error_leaves_what_goes_into_a_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    with open(tmp_path / "out", "w") as file:
        monkeypatch.setattr("sys.stdout", file)
        with stage("grading", 4, console=Console(stderr=True, force_terminal=True, width=80)):
            print("a row")
    assert (tmp_path / "out").read_text() == "a row\n"
    assert "grading" in shown.getvalue() and "a row" not in shown.getvalue()


def test_a_stage_that_is_over_soon_shows_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.observe.terminal.stage.SHOWN_AFTER_SECONDS", 1e9)
    with LateStage("reading x") as progress:
        progress.show("3 rows")
    assert capsys.readouterr() == ("", "")


def test_a_long_stage_is_shown_on_standard_error_with_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.observe.terminal.stage.SHOWN_AFTER_SECONDS", 0.0)
    with LateStage("reading x") as progress:
        # What it took before it was shown counts.
        progress._began -= 60.0
        progress.show("3 rows", done=3, total=6)
    shown = capsys.readouterr()
    assert shown.out == "" and "start   reading x" in shown.err and "done    reading x in 1:00" in shown.err


def test_a_long_stage_that_fails_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.observe.terminal.stage.SHOWN_AFTER_SECONDS", 0.0)
    with pytest.raises(ValueError, match="no"), LateStage("reading x") as progress:
        progress.show("3 rows")
        raise ValueError("no")
    assert "failed  reading x" in capsys.readouterr().err


def test_the_median_of_the_last_times_is_expected(tmp_path: Path) -> None:
    past = PastSeconds(tmp_path / "past.json")
    assert past.expected("start") is None
    for seconds in (100.0, 100.0, 100.0, 9.0, 10.0, 12.0, 11.0, 10.5):
        past.note("start", seconds)
    assert PastSeconds(tmp_path / "past.json").expected("start") == 10.5


def test_things_noted_longest_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.observe.terminal.stage.MOST_THINGS", 2)
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
