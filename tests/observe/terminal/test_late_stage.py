"""A stage that is over soon shows nothing."""

import pytest

from asyncrl.observe.terminal import stage
from asyncrl.observe.terminal.stage import LateStage


def test_a_stage_that_is_over_soon_shows_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "SHOWN_AFTER_SECONDS", 1e9)
    with LateStage("reading x") as progress:
        progress.show("3 rows")
    assert capsys.readouterr() == ("", "")


def test_a_long_stage_is_shown_on_standard_error_with_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "SHOWN_AFTER_SECONDS", 0.0)
    with LateStage("reading x") as progress:
        # What it took before it was shown counts.
        progress._began -= 60.0
        progress.show("3 rows", done=3, total=6)
    shown = capsys.readouterr()
    assert shown.out == "" and "start   reading x" in shown.err and "done    reading x in 1:00" in shown.err


def test_a_long_stage_that_fails_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "SHOWN_AFTER_SECONDS", 0.0)
    with pytest.raises(ValueError, match="no"), LateStage("reading x") as progress:
        progress.show("3 rows")
        raise ValueError("no")
    assert "failed  reading x" in capsys.readouterr().err
