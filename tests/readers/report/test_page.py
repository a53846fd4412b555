"""The report: one self-contained page and a picture."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fakes.compared_runs import write_run as write_compared
from fakes.evaluated_run import evaluate_run
from fakes.finished_run import EVALUATION, edit_journal, write_run

from asyncrl.observe.terminal.table import Table
from asyncrl.readers.report.tables import as_markdown
from asyncrl.readers.report.write import write_report
from asyncrl.run.metrics_file import MetricsWriter


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with its report, looked at by several tests."""
    folder = write_run(tmp_path_factory.mktemp("reported"))
    write_report(folder, commands={"checkpoint": "runs/sums/10", "chat": "asyncrl chat x"})
    return folder


@pytest.fixture
def page(reported: Path) -> str:
    return (reported / "report.html").read_text()


class _Addresses(HTMLParser):
    """Collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            # A fragment points into the page itself.
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.found.append(value)


def test_the_page_fetches_nothing(page: str) -> None:
    addresses = _Addresses()
    addresses.feed(page)
    assert addresses.found == []
    # Names of XML namespaces are no addresses.
    text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert re.findall(r"https?://|@import|url\((?!#)", text) == []


def test_the_page_holds_evaluations_books_times_recipe_and_commands(page: str) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    for expected in (
        "base, step 0 last, step 10 best (chosen on these tasks), step 10",
        "greedy accuracy 50.0% [24.0, 76.0] 80.0% [49.0, 94.0] 80.0% [49.0, 94.0]",
        "avg@2 70.0% [50.0, 90.0] 70.0% [50.0, 90.0] 70.0% [50.0, 90.0]",
        "The highest of several noisy values is optimistic",
        "generated 10 3",
        "= trained 7 1 70.0%",
        "Every generated token is accounted for.",
        "training 50%",
        "name: sums",
        "asyncrl chat x",
        "runs/sums/10",
    ):
        assert expected in text, expected


def test_what_a_program_wrote_is_escaped(run_folder: Path) -> None:
    edit_journal(run_folder, "UPDATE trajectories SET outcome = 'fault', detail = '<b>no' WHERE sample = 0")
    write_report(run_folder)
    page = (run_folder / "report.html").read_text()
    assert "&lt;b&gt;no" in page and "<b>no" not in page


def test_answers_stand_side_by_side_and_escaped(tmp_path: Path) -> None:
    recipe = {
        "name": "<b>sums",
        "model": {"path": "small"},
        "data": {"train": "rows.jsonl"},
        "evaluation": {"every_steps": 0},
    }
    run = write_compared(tmp_path / "run", {0: [0.0, 1.0], 4: [1.0, 1.0]}, recipe=recipe)
    edit_journal(run, "UPDATE evaluated SET text = '<img src=x>' WHERE version = 4")
    edit_journal(run, "UPDATE evaluated SET text = NULL WHERE version = 0 AND task_id = 'heldout:2'")
    page = _written(run)
    assert "<img" not in page and "<b>sums" not in page and page.count("&lt;img src=x&gt;") == 2
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert (
        "answers to 2 tasks, at step 0 and at step 4: 1 wrong to right, 0 right to wrong, 1 right twice"
        in text
    )
    assert "step 0 wrong , 4 tokens, answer 7 it is 7 step 4 correct , 4 tokens, answer 2" in text
    assert "The text was not kept." in text


def test_a_run_without_stored_answers_says_what_makes_them(page: str, reported: Path) -> None:
    assert "Nothing kept answers of the base model" in page
    assert f"asyncrl eval {reported} FILE --at base,last" in page


def test_the_curves_are_also_a_png_file(page: str, reported: Path) -> None:
    assert (reported / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in page


def test_a_run_that_stopped_before_its_first_step_gets_a_report(run_folder: Path) -> None:
    (run_folder / "metrics.jsonl").unlink()
    (run_folder / "journal.sqlite").unlink()
    write_report(run_folder)
    page = (run_folder / "report.html").read_text()
    assert "0 optimizer steps" in page and "This run has not begun." in page


def test_benchmarks_stand_side_by_side_and_the_template_is_named(run_folder: Path) -> None:
    row = {
        "benchmark": "gsm8k",
        "template": "<r1>",
        "num_tasks": 2,
        "temperature": 0.0,
        "max_new_tokens": 64,
        "greedy_accuracy": 0.5,
        "greedy_low": 0.1,
        "greedy_high": 0.9,
        "greedy_scores": [1.0, 0.0],
        "response_tokens_mean": 12.0,
        "cut_share": 0.5,
        "num_faults": 0,
    }
    with MetricsWriter(run_folder / "metrics.jsonl") as writer:
        writer.evaluation({"step": 10, "when": "after", "template": "<r1>", **EVALUATION})
        writer.benchmark({"step": 0, "when": "before", **row})
        for step, accuracy in ((5, 0.25), (10, 0.75)):
            writer.benchmark({"step": step, "when": "during", **row, "greedy_accuracy": accuracy})
        writer.benchmark({"step": 10, "when": "after", **row, "greedy_scores": [1.0, 1.0]})
    write_report(run_folder)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", (run_folder / "report.html").read_text()))
    assert "gsm8k: 2 tasks, template &lt;r1&gt;, greedy, at most 64 tokens" in text
    # Differences 0 and 1: mean 0.5, centre 1 / 4, half 1.96 x sqrt((2 / 4 - 1 / 16) / 4) = 0.648
    assert "greedy accuracy 50.0% [10.0, 90.0] 50.0% [10.0, 90.0] +50.0 [-39.8, +89.8]" in text
    assert "10 tasks, template &lt;r1&gt;" in text
    assert "gsm8k during training step greedy 5 25.0% 10 75.0%" in text


def test_base_and_trained_stand_in_one_picture_with_the_curves_over_k(run_folder: Path) -> None:
    assert "<h2>Samples" not in _written(run_folder)
    evaluate_run(run_folder, last="$step <40>$")
    page = _written(run_folder)
    assert "<h2>Samples: pass@k of base and trained</h2>" in page and page.count("<svg") == 2
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "k base $step &lt;40&gt;$ difference 1 6.3% [3.6, 10.6] 50.0%" in text
    assert "The curves cross at k = 9; at k = 16 base solves more tasks" in text
    assert "First samples to 12 tasks, at base and at $step &lt;40&gt;$: 6 wrong to right" in text
    assert "it is wrong &lt;i&gt;0" in text
    report = json.loads((run_folder / "report.json").read_text())
    (evaluated,) = report["evaluations"]
    assert evaluated["sampled"] == evaluated["models"] == ["base", "$step <40>$"]
    assert [len(curve["mean"]) for curve in evaluated["curves"]["maj"]] == [16, 16]
    assert evaluated["contrasts"]["pass"][1]["crossing"] == 9


def _written(run_folder: Path) -> str:
    write_report(run_folder)
    return (run_folder / "report.html").read_text()


def test_markdown_keeps_its_columns_whatever_stands_in_them() -> None:
    table = Table("A & B", ("", "50% | x"), (("a_b", "1 ± 2"), ("<i>", "\\x{}")), "note #1")
    assert as_markdown("t", ["not finished"], [table]) == (
        "# t\n\nnot finished\n\n## A & B\n\n"
        "|  | 50% \\| x |\n| --- | ---: |\n| a_b | 1 ± 2 |\n| &lt;i> | \\\\x{} |\n\nnote #1\n"
    )
