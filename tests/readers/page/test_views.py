"""Views of a run on the page: its curves as they are told, and its evaluations."""

from pathlib import Path

import pytest
from fakes.chromium import needs_chromium
from fakes.evaluated_run import evaluate_run
from fakes.opened_page import CUT, opened

from asyncrl.errors import InputError
from asyncrl.readers.page.runs import Run
from asyncrl.readers.page.views import read_curves, read_evaluations
from asyncrl.run.metrics_file import MetricsWriter

COLUMNS = ["reward_mean", "mismatch_kl"]


def begin(folder: Path, num_steps: int) -> Run:
    with MetricsWriter(folder / "metrics.jsonl", clock=lambda: 5.0) as writer:
        for step in range(1, num_steps + 1):
            writer.step({"step": step, "reward_mean": 0.1 * step, "mismatch_kl": None, "text": "x"})
    return Run("sums", folder)


def test_a_page_that_has_nothing_gets_each_step_of_the_columns_it_asks_for(tmp_path: Path) -> None:
    curves = read_curves(begin(tmp_path, 3), COLUMNS, "")
    assert curves["is_whole"]
    assert curves["steps"] == [1, 2, 3]
    assert curves["columns"] == {
        "reward_mean": [0.1, 0.2, pytest.approx(0.3)],
        "mismatch_kl": [None, None, None],
    }
    # Only columns that hold a number can be drawn.
    assert curves["names"] == ["reward_mean"]


def test_a_page_that_follows_gets_only_what_is_new(tmp_path: Path) -> None:
    run = begin(tmp_path, 3)
    cursor = read_curves(run, COLUMNS, "")["cursor"]
    assert read_curves(run, COLUMNS, cursor)["steps"] == []
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.step({"step": 4, "reward_mean": 1.0})
    again = read_curves(run, COLUMNS, cursor)
    assert (again["is_whole"], again["keep_to"]) == (False, None)
    assert (again["steps"], again["columns"]["reward_mean"]) == ([4], [1.0])


def test_a_resumed_run_supersedes_the_steps_that_a_page_has(tmp_path: Path) -> None:
    run = begin(tmp_path, 5)
    cursor = read_curves(run, COLUMNS, "")["cursor"]
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.resumed(2)
        writer.step({"step": 3, "reward_mean": 7.0})
    again = read_curves(run, COLUMNS, cursor)
    assert (again["keep_to"], again["steps"]) == (2, [3])
    assert read_curves(run, COLUMNS, "")["steps"] == [1, 2, 3]


def test_a_file_that_was_replaced_is_told_as_a_whole(tmp_path: Path) -> None:
    run = begin(tmp_path, 3)
    cursor = read_curves(run, COLUMNS, "")["cursor"]
    (tmp_path / "metrics.jsonl").rename(tmp_path / "former.jsonl")
    begin(tmp_path, 2)
    again = read_curves(run, COLUMNS, cursor)
    assert again["is_whole"] and again["steps"] == [1, 2]


@pytest.mark.parametrize("cursor", ["x", "1", "1-x", "-", "9" * 40, "1-" + "9" * 40])
def test_any_other_cursor_is_one_of_a_page_that_has_nothing(tmp_path: Path, cursor: str) -> None:
    assert read_curves(begin(tmp_path, 3), COLUMNS, cursor)["is_whole"]


def test_a_line_that_is_no_row_is_an_error_each_time(tmp_path: Path) -> None:
    run = begin(tmp_path, 3)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("no row\n")
    for _ in range(2):
        with pytest.raises(InputError, match="metrics.jsonl:4 is not a row"):
            read_curves(run, COLUMNS, "")


def test_each_named_set_has_points_of_its_own_with_its_interval(tmp_path: Path) -> None:
    run = begin(tmp_path, 1)
    greedy = {"benchmark": "mine", "greedy_accuracy": 0.5, "greedy_low": 0.25, "greedy_high": 0.75}
    sampled = {"benchmark": "aime24", "greedy_accuracy": None, "avg_at_k": 0.125}
    with MetricsWriter(tmp_path / "metrics.jsonl", clock=lambda: 6.0) as writer:
        writer.benchmark({"step": 2, "when": "during", **greedy})
        writer.benchmark({"step": 1, "when": "during", **sampled, "avg_low": 0.0, "avg_high": 0.25})
    assert [tuple(row.values()) for row in read_curves(run, [], "")["sets"]] == [
        ("aime24", 1, 6.0, 0.125, 0.0, 0.25),
        ("mine", 2, 6.0, 0.5, 0.25, 0.75),
    ]


LABELS = "[...document.querySelectorAll('canvas')].map((each) => each.getAttribute('aria-label'))"


def test_an_evaluation_is_told_with_its_table_and_its_curves(run_folder: Path) -> None:
    run = Run("run", run_folder)
    before = run.revision()
    assert read_evaluations(run) == []
    evaluate_run(run_folder)
    assert run.revision() != before
    (found,) = read_evaluations(run)
    assert found["title"].startswith("held-out: 12 tasks, template r1, 16 samples at temperature 1")
    assert found["header"] == ["", "base", "step 40 (last)", "difference"]
    assert [row[0] for row in found["rows"]][:2] == ["avg@16", "pass@16"]
    assert list(found["compared"]["curves"]) == ["pass", "maj"]


@needs_chromium
async def test_base_and_trained_appear_in_one_picture_while_the_page_is_open(
    run_folder: Path, browser_address: str
) -> None:
    async with opened(run_folder, browser_address, "#/run/evaluations") as page:
        await page.wait_for("document.querySelector('#unmeasured')?.hidden === false")
        evaluate_run(run_folder, last="<b>step 40</b>")
        await page.wait_for("document.querySelectorAll('#measured canvas').length === 2")
        passed, majority = await page.evaluate(LABELS)
        assert passed == "pass@k: one of k samples is correct: base 100%, <b>step 40</b> 50%"
        assert majority.startswith("maj@k: most of k samples give the correct answer: base 0%")
        await page.wait_for("document.querySelector('#measured canvas').width > 301")
        assert "training narrowed what the model solves" in await page.text("#measured .sentence")
        assert "+43.8" in await page.text("#measured table")
        # The horizontal axis is logarithmic, and says k itself.
        middle = await page.middle("#measured canvas")
        await page.mouse("mouseMoved", *middle)
        # In the middle of 1 to 16 lie 3 and 4.
        await page.wait_for("/^k [34]\\n/.test(document.querySelector('.readout:not([hidden])')?.innerText)")
        await page.resize(420, 800)
        assert await page.evaluate(CUT) == []
