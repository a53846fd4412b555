"""The end of a run on the terminal."""

import io
from pathlib import Path

import pytest
from fakes.finished_run import GENERATED
from rich.console import Console

from asyncrl.observe.metrics.metrics_file import MetricsWriter
from asyncrl.observe.metrics.summary import summarize
from asyncrl.readers.status.end_of_run import print_summary


@pytest.fixture
def generated() -> dict[str, int]:
    return dict(GENERATED)


def shown(run_folder: Path, tokens: dict[str, int], *, width: int = 80, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    summary = summarize(
        run_folder, tokens, checkpoint=Path("runs/sums/checkpoints/10"), commands={"chat": "asyncrl chat x"}
    )
    print_summary(summary, console=Console(file=file, width=width, highlight=False))
    file.seek(0)
    return file.read()


def test_both_r1_zero_curves_and_the_evaluations_are_shown(
    run_folder: Path, generated: dict[str, int]
) -> None:
    text = shown(run_folder, generated)
    assert "held-out accuracy  50% -> 80%" in text
    assert "response length  6.00 -> 15.0 tokens" in text
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "greedy accuracy 50% 24-76 80% 49-94" in lines
    assert "pass@2 90% 60-98 90% 60-98" in lines
    assert "= trained 7 1 70.0%" in lines
    assert "+ dropped: stale 2 1 20.0%" in lines
    assert "unaccounted" not in text


def test_a_token_that_nobody_accounts_for_is_pointed_out(run_folder: Path) -> None:
    text = shown(run_folder, {"generated": 10, "trained": 7})
    assert "! unaccounted" in text


def test_what_to_do_next_can_be_copied(run_folder: Path, generated: dict[str, int]) -> None:
    text = shown(run_folder, generated)
    assert "checkpoint  runs/sums/checkpoints/10\n" in text
    assert "asyncrl chat x\n" in text
    # A path longer than the terminal is not broken into lines.
    assert f"{run_folder / 'report.html'}\n" in text


@pytest.mark.parametrize(("width", "encoding"), [(40, "utf-8"), (80, "ascii"), (200, "utf-8")])
def test_it_works_on_narrow_plain_and_wide_terminals(
    run_folder: Path, generated: dict[str, int], width: int, encoding: str
) -> None:
    text = shown(run_folder, generated, width=width, encoding=encoding)
    plots = text[: text.index("held-out tasks")].splitlines()
    assert max(map(len, plots)) <= width
    assert "\x1b" not in text


def test_the_end_of_a_run_tells_of_its_alarms(run_folder: Path, generated: dict[str, int]) -> None:
    assert "alarm" not in shown(run_folder, generated)
    with MetricsWriter(run_folder / "metrics.jsonl") as metrics:
        for name, step, is_on in (
            ("capped_share", 1, True),
            ("dead_groups", 1, True),
            ("dead_groups", 2, False),
        ):
            metrics.event("alarm", alarm=name, step=step, text="7.0% are capped", is_on=is_on)
    text = shown(run_folder, generated)
    assert "alarm capped_share  at step 1: 7.0% are capped" in text
    assert "alarm dead_groups  over since step 2" in text


def test_a_run_without_steps_prints_its_books(tmp_path: Path) -> None:
    assert "0 steps" in shown(tmp_path, {"generated": 0, "trained": 0})
