"""Response length by correctness and reflection words: in report.json, in the table and as CSV."""

import csv
from pathlib import Path
from typing import Any

import pytest
from fakes.finished_run import write_run

from asyncrl.commands import main as cli
from asyncrl.readers.report.collect import collect
from asyncrl.readers.report.costs import responses_table, step_responses
from asyncrl.run.metrics_file import MetricsWriter

COLUMNS: dict[str, Any] = {
    "response_tokens_mean_by_outcome": {"correct": 40.0, "wrong": 90.0, "no_answer": 9.0},
    "reflection_words_mean": 1.5,
    "reflection_words_share": 0.5,
    "reflection_words_mean_by_outcome": {"wrong": 3.0},
    "reflection_words_mean_by_word": {"wait": 1.25, "check": 0.25},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten steps, none of which has counts, then one that has."""
    folder = write_run(tmp_path)
    with MetricsWriter(folder / "metrics.jsonl") as writer:
        writer.step({"step": 11, **COLUMNS})
    return folder


def test_each_step_has_its_values_and_what_it_lacks_is_null(run: Path) -> None:
    report = collect(run)
    assert [each.step for each in report.responses] == list(range(1, 12))
    last = report.responses[-1]
    assert (last.correct_tokens_mean, last.wrong_tokens_mean) == (40.0, 90.0)
    assert (last.correct_reflection_words_mean, last.wrong_reflection_words_mean) == (None, 3.0)
    assert last.reflection_words_by_word == {"wait": 1.25, "check": 0.25}
    assert report.responses[0].reflection_words_mean is None
    table = responses_table(report)
    rows = {title: cells for title, *cells in table.rows}
    assert rows["reflection words per response"] == ["1.5", "1.5", "1.5", "1"]
    # Steps without counts are said, and are no zeros.
    assert "of 11" in table.note and "view.reflection_words): wait, mistake" in table.note


def test_the_csv_has_a_row_per_step_and_a_column_per_word(run: Path) -> None:
    assert cli.main(["report", str(run), "--format", "csv"]) == 0
    with (run / "responses.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 12)]
    assert (rows[-1]["wrong_tokens_mean"], rows[-1]["reflection_word: wait"]) == ("90.0", "1.25")
    assert rows[0]["reflection_words_mean"] == ""


def test_a_run_without_steps_has_none() -> None:
    assert step_responses([]) == []
