"""The end of a run on the terminal."""

import io
import sqlite3
from pathlib import Path

import pytest
from rich.console import Console

from asyncrl.readers.report.collect import collect
from asyncrl.readers.status import print_end
from asyncrl.run.metrics_file import MetricsWriter


def shown(run_folder: Path, *, width: int = 80, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    commands = {"checkpoint": "runs/sums/checkpoints/10", "chat": "asyncrl chat x"}
    console = Console(file=file, width=width, highlight=False)
    print_end(collect(run_folder), run_folder, commands, console=console)
    file.seek(0)
    return file.read()


def test_the_evaluations_and_the_books_are_shown(run_folder: Path) -> None:
    text = shown(run_folder)
    assert "response tokens, first to last step  6.00 -> 15.0" in text
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "greedy accuracy 50.0% [24.0, 76.0] 80.0% [49.0, 94.0] 80.0% [49.0, 94.0]" in lines
    assert "pass@2 90.0% [60.0, 98.0] 90.0% [60.0, 98.0] 90.0% [60.0, 98.0]" in lines
    assert "= trained 7 1 70.0%" in lines
    assert "+ dropped: stale 2 1 20.0%" in lines
    assert "unaccounted" not in text


def test_a_token_that_nobody_accounts_for_is_pointed_out(run_folder: Path) -> None:
    with sqlite3.connect(run_folder / "journal.sqlite") as journal:
        journal.execute("DELETE FROM counters WHERE name = 'tokens_dropped:stale'")
    assert "! unaccounted" in shown(run_folder)


def test_what_to_do_next_can_be_copied(run_folder: Path) -> None:
    text = shown(run_folder)
    assert "checkpoint  runs/sums/checkpoints/10\n" in text
    assert "asyncrl chat x\n" in text
    # A path longer than the terminal is not broken into lines.
    assert f"{run_folder / 'report.html'}\n" in text


@pytest.mark.parametrize(("width", "encoding"), [(40, "utf-8"), (80, "ascii"), (200, "utf-8")])
def test_it_works_on_narrow_plain_and_wide_terminals(run_folder: Path, width: int, encoding: str) -> None:
    text = shown(run_folder, width=width, encoding=encoding)
    tables = text[: text.index("report  ")].splitlines()
    assert max(map(len, tables)) <= width
    assert "\x1b" not in text


def test_the_end_of_a_run_tells_of_its_alarms(run_folder: Path) -> None:
    assert "alarm" not in shown(run_folder)
    with MetricsWriter(run_folder / "metrics.jsonl") as metrics:
        for name, step, is_on in (
            ("capped_share", 1, True),
            ("dead_groups", 1, True),
            ("dead_groups", 2, False),
        ):
            metrics.event("alarm", alarm=name, step=step, text="7.0% are capped", is_on=is_on)
    text = shown(run_folder)
    assert "alarm capped_share  at step 1: 7.0% are capped" in text
    assert "alarm dead_groups  over since step 2" in text


def test_a_run_without_steps_prints_its_books(run_folder: Path) -> None:
    (run_folder / "metrics.jsonl").unlink()
    assert "0 steps" in shown(run_folder)


def test_a_run_with_agents_says_how_they_ended_and_what_trained_nothing(run_folder: Path) -> None:
    assert "agents  " not in shown(run_folder)
    causes = "agents without a call of the model: 3 (the first: train:1)"
    with MetricsWriter(run_folder / "metrics.jsonl") as metrics:
        metrics.step({"step": 11, "agents_replied": 1000, "agents_without_call": 1})
        metrics.step({"step": 12, "agents_replied": 5, "agents_without_call": 2, "causes": causes})
    lines = shown(run_folder, width=200).splitlines()
    assert {"agents  1,005 replied, 3 no call", f"causes  {causes}"} <= set(lines)
