"""The evaluations of a run, in the page."""

from pathlib import Path

from fakes.chromium import needs_chromium
from fakes.evaluated_run import evaluate_run
from fakes.opened_page import CUT, opened

from asyncrl.readers.page.runs import Run
from asyncrl.readers.page.views import read_evaluations

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
