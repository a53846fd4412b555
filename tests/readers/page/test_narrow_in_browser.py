"""A window of 400 pixels in a real Chromium: nothing is cut without a way to see the rest."""

import time
from pathlib import Path

import pytest
from fakes.browsed_run import write_browsed_run
from fakes.chromium import Page, needs_chromium
from fakes.opened_page import CUT, go, opened
from fakes.statuses import make_status

from asyncrl.run.status import ServerStatus, write_status

pytestmark = needs_chromium

NAME = "r1_zero_smollm2_cpu-learning-rate-3e-5"
SERVER: ServerStatus = {
    "url": "http://a-host-with-a-long-name.example.org:30000",
    "state": "restarting",
    "version": 12,
    "requests": 24,
    "tokens_per_second": 2950.0,
    "restarts": 3,
    "retractions": 0,
    "busy_share": 0.97,
}
VIEWS = {
    "groups": "#groups tr",
    "groups/3": "#group article",
    "servers": "main table",
    "ledger": "#ledger-rows tr",
    "answers": "#tasks article",
    "log": "#log-rows tr",
    "curves": "#charts canvas",
    "faults": "#causes article pre",
}
"""View -> what it shows at last."""
WIDEST = """
[...document.querySelectorAll("#groups tr:first-child td")].forEach((cell, index) => {
  const mark = () => document.createElement("i");
  if (index === 2) cell.firstChild.append(...Array.from({ length: 28 }, mark));
  else cell.textContent = ["12345", "dropped: no_signal", "", "-12.50", "123,456", "v1234-1238"][index];
}); 0
"""
"""Gives the first group of the list numbers of a long run, and 32 responses."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_browsed_run(tmp_path, NAME)
    write_status(folder, make_status(servers=[SERVER], step=12, time_seconds=time.time() - 60))
    return folder


async def is_whole(page: Page, selector: str) -> bool:
    """Whether all of the element is there without scrolling sideways."""
    return bool(
        await page.evaluate(
            f"(e => e.scrollWidth <= e.clientWidth + 1)(document.querySelector({selector!r}))"
        )
    )


async def test_no_view_cuts_anything_invisibly(run: Path, browser_address: str) -> None:
    async with opened(run.parent, browser_address, width=400, height=800) as page:
        await page.wait_for("document.querySelector('#runs tr')")
        assert await page.evaluate(CUT) == []
        for view, shown in VIEWS.items():
            await go(page, f"#/{NAME}/{view}", shown)
            await page.wait_for("document.querySelector('#head').innerText.includes('no longer running')")
            assert await page.evaluate(CUT) == [], view


async def test_the_state_and_the_columns_of_the_groups_are_read_without_scrolling_sideways(
    run: Path, browser_address: str
) -> None:
    async with opened(run.parent, browser_address, f"#/{NAME}/groups", width=400, height=800) as page:
        await page.wait_for("document.querySelector('#groups tr')")
        assert await is_whole(page, "#list")
        await page.evaluate(WIDEST)
        assert await is_whole(page, "#list")
        # All six columns are there: group, fate, outcomes, reward, tokens, versions.
        lefts = await page.evaluate(
            "[...document.querySelectorAll('#groups tr:first-child td')]"
            ".map((cell) => cell.getBoundingClientRect()).map((box) => [box.width, box.right])"
        )
        assert len(lefts) == 6 and all(width > 0 and right <= 400 for width, right in lefts)
        # A squeezed column of letters is no readable state.
        assert await page.evaluate("document.querySelector('#head').getBoundingClientRect().width") > 200
        await go(page, f"#/{NAME}/servers", "main table")
        assert await is_whole(page, ".servers .scroll")
        state = "document.querySelector('.servers .scroll td:nth-child(2)')"
        assert await page.evaluate(f"{state}.innerText") == "no longer running"
        assert await page.evaluate(f"{state}.getBoundingClientRect().right") <= 400
