"""The views of trajectories, in a real browser and as the server answers them."""

from pathlib import Path

import pytest
from aiohttp import ClientSession
from fakes.browsed_run import NUM_STEPS, TRACE, write_browsed_run
from fakes.chromium import Page, needs_chromium
from fakes.finished_run import edit_journal
from fakes.opened_page import go, opened, served

from asyncrl.observe.metrics.mishaps import WarningLog
from asyncrl.readers.page import groups
from asyncrl.readers.page.app import export
from asyncrl.readers.page.groups import read_group, read_trajectory
from asyncrl.readers.page.runs import Run
from asyncrl.run.metrics_file import MetricsWriter


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_browsed_run(tmp_path_factory.mktemp("browsed"))


async def background(page: Page, text: str) -> str:
    """Of the first token with that text."""
    find = f"[...document.querySelectorAll('.token')].find(t => t.textContent.trim() === {text!r})"
    return str(await page.evaluate(f"{find}.style.background"))


@needs_chromium
async def test_tokens_are_coloured_by_what_a_step_knew_of_them(run: Path, browser_address: str) -> None:
    async with opened(run, browser_address, "#/sums/groups/8") as page:
        await page.wait_for("document.querySelectorAll('#group article').length == 4")
        for coloring, words in [
            ("ratio", "2 or more: more likely"),
            ("entropy", "0 nats: certain"),
            ("advantage", "less likely by training"),
            ("probability", "when it was sampled"),
        ]:
            await page.click(f"input[value={coloring}]")
            assert words in await page.text("#legend")
            assert "rgb" in await background(page, "answer")
        tips = await page.evaluate("[...document.querySelectorAll('.token')].map(t => t.dataset.tip)")
        # The first token has no finite ratio.
        assert "importance ratio" not in tips[0] and "importance ratio" in tips[1] and "in step 2" in tips[1]
        assert "nats" in tips[0] and "advantage" in tips[0]
        # Only one outcome.
        await page.evaluate(
            "(s => { s.value = 'wrong'; s.dispatchEvent(new Event('change')); })"
            "(document.querySelector('.tools select'))"
        )
        shown = "[...document.querySelectorAll('#group article')].filter(a => !a.hidden)"
        assert await page.evaluate(f"{shown}.every(a => a.dataset.outcome === 'wrong')")
        # A group that nobody trained has no ratios to show.
        await go(page, "#/sums/groups/0", "#group .unknown")
        await page.wait_for("document.querySelector('#group h2').textContent.startsWith('Group 0')")
        await page.click("input[value=ratio]")
        assert "view.groups_per_step" in await page.text("#group .unknown")
        # Search, then open the first hit: what was searched is marked.
        await page.click("input[type=search]")
        await page.type("More precisely")
        await page.press("Enter")
        await page.wait_for(
            "document.querySelector('#empty').textContent.includes('All groups are searched')"
        )
        assert await page.evaluate("document.querySelectorAll('#groups mark').length") > 3
        await page.click("#groups tr")
        await page.wait_for("document.querySelectorAll('.token.found').length >= 2")


@needs_chromium
async def test_ledger_answers_faults_and_log_link_to_groups_and_follow_the_run(
    run: Path, browser_address: str
) -> None:
    async with opened(run, browser_address, "#/sums/ledger") as page:
        assert "Every generated token is accounted for." in await page.text("#books")
        await page.wait_for(f"document.querySelectorAll('#ledger-rows tr').length == {NUM_STEPS}")
        # By the keyboard: the second row from above, which an update leaves chosen, opens its step.
        await page.press("j")
        await page.press("j")
        await page.evaluate("views.ledger.update()")
        await page.press("Enter")
        await page.wait_for("document.querySelector('#filters input[name=step]')?.value === '5'")
        await page.press("Escape")
        await go(page, "#/sums/ledger", "#ledger-rows tr:last-child .chip")
        await page.click("#ledger-rows tr:last-child .chip")
        await page.wait_for("document.querySelector('#chips button') !== null")
        assert "no_signal" in await page.text("#chips")
        listed = "document.querySelectorAll('#groups tr').length"
        few = await page.evaluate(listed)
        await page.click("#chips button:last-child")
        await page.wait_for(f"{listed} > {few}")
        await go(page, "#/sums/answers", ".visit.other")
        await page.click(".visit.other")
        await page.wait_for("document.querySelectorAll('#group article').length == 4")
        await go(page, "#/sums/faults", ".trace")
        assert (await page.text(".trace")).strip() == TRACE.strip()
        assert "TypeError at /runs/verifiers/sums.py:63" in await page.text(".cause")
        await go(page, "#/sums/log", "#log-rows tr")
        said = await page.text("#log-rows")
        assert f"{40 * NUM_STEPS}×" in said and "entropy fell to 0.02 nats" in said
        with MetricsWriter(run / "metrics.jsonl") as metrics:
            WarningLog(metrics).add("server b leaves", kind="leaves")
        await page.wait_for("document.querySelector('#log-rows').textContent.includes('server b leaves')")


async def test_a_search_says_where_the_next_one_continues(run: Path) -> None:
    async with served(run) as url, ClientSession() as session:
        async with session.get(f"{url}api/runs/sums/search", params={"text": "precisely"}) as reply:
            found = await reply.json()
            assert found["below"] == 0 and found["hits"][0]["match"] == "precisely"
        async with session.get(f"{url}api/runs/sums/search", params={"text": "sum", "below": 3}) as reply:
            assert all(hit["group_id"] < 3 for hit in (await reply.json())["hits"])
        async with session.get(f"{url}api/runs/sums/search") as reply:
            assert (reply.status, "expected 1 to 200" in await reply.text()) == (400, True)
        async with session.get(f"{url}api/runs/sums/groups/8/99") as reply:
            assert reply.status == 404


def test_numbers_of_a_token_stand_with_it_and_one_that_is_not_finite_is_none(run: Path) -> None:
    group = read_group(Run("sums", run), 8)
    assert group is not None
    (first, second, *_) = group["trajectories"][0]["segments"][0]["tokens"]
    assert len(first) == 6 and first[3] is None and isinstance(second[3], float)
    assert first[5] == group["trajectories"][0]["advantage"]
    assert group["trajectories"][0]["trained_step"] == 2


def test_a_long_group_comes_with_the_text_of_its_first_trajectories(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MOST_TOKENS", 40)
    group = read_group(Run("sums", run), 8)
    assert group is not None
    assert [t["has_text"] for t in group["trajectories"]] == [True, False, False, False]
    assert not group["trajectories"][1]["segments"][0]["tokens"] and group["trajectories"][1]["num_tokens"]
    alone = read_trajectory(Run("sums", run), 8, 1)
    assert alone is not None and alone["segments"][0]["tokens"]
    page = export([Run("sums", run)], num_groups=100)
    assert '"/api/runs/sums/groups/8/1"' in page and '"/api/runs/sums/faults"' in page


@needs_chromium
async def test_an_answer_that_no_verifier_reads_is_not_called_missing(
    tmp_path: Path, browser_address: str
) -> None:
    run = write_browsed_run(tmp_path)
    said = "[...document.querySelectorAll('.visit b')].map((each) => each.innerText)"
    edit_journal(run, "UPDATE answers SET answer = NULL WHERE group_id % 3")
    async with opened(run, browser_address, "#/sums/answers") as page:
        await page.wait_for(f"{said}.includes('no answer')")
        edit_journal(run, "UPDATE answers SET answer = NULL")
        await page.wait_for(f"update().then(() => {said}.every((each) => each === '–'))")
