"""Chains of the page: their answers, and in a real browser."""

import json
from pathlib import Path

import pytest
from aiohttp import ClientSession
from fakes.chained_runs import write_chain
from fakes.chromium import needs_chromium
from fakes.opened_page import CUT, opened, served
from fakes.statuses import make_status

from asyncrl.readers.page.runs import Runs
from asyncrl.run.status import write_status


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return write_chain(tmp_path / "runs")


async def test_a_chain_is_beside_the_runs_of_its_stages(chain: Path) -> None:
    # Named by its folder, by its file, or found in the folder of runs.
    for place in (chain, chain.parent / "story.yaml", chain.parent):
        runs = Runs([place])
        assert runs.chains() == {"story": chain} and [*runs.folders()] == ["rl", "sft"]
    async with served(chain) as url, ClientSession() as session:
        async with session.get(f"{url}api/chains") as reply:
            (found,) = await reply.json()
        assert found["runs"] == {"2": "sft", "3": "rl"} and found["state"] == "training"
        assert [table["title"] for table in found["tables"]] == [
            "What each stage brought",
            "What each stage cost",
        ]
        (chain / "stage-1.json").write_text("{")
        async with session.get(f"{url}api/chains") as reply:
            (found,) = await reply.json()
        assert "stage-1.json is damaged" in found["problem"]


@needs_chromium
async def test_a_chain_is_one_story_from_which_each_run_opens(chain: Path, browser_address: str) -> None:
    async with opened(chain.parent, browser_address) as page:
        await page.wait_for("document.querySelector('#chains a')")
        await page.click("#chains a")
        await page.wait_for("document.querySelectorAll('.stages li').length == 3")
        first, second, third = [await page.text(f".stages li:nth-child({n})") for n in (1, 2, 3)]
        assert "wrote 20 lines of 8 of 10 rows" in first and "generated 160 responses" in first
        assert "held-out 25% → 75% 60–86" in second and "began with" in second
        assert "training, step 2 of 4" in third and "began with sft, step 4" in third
        assert "+50.0 [" in await page.text(".chain")
        await page.wait_for("document.querySelectorAll('.chain canvas').length == 1")
        # The page follows the run.
        write_status(chain.parent / "rl", make_status(state="failed", step=2, total_steps=4))
        await page.wait_for("document.querySelector('.stages li:nth-child(3)').innerText.includes('failed')")
        await page.resize(420, 800)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 420
        assert await page.evaluate(CUT) == []
        await page.click(".stages li:nth-child(2) a")
        await page.wait_for("location.hash == '#/sft'")


@needs_chromium
async def test_a_folder_without_a_chain_shows_no_tab_of_chains(chain: Path, browser_address: str) -> None:
    (chain / "chain.json").unlink()
    async with opened(chain.parent, browser_address) as page:
        await page.wait_for("document.querySelectorAll('#runs tr').length == 2")
        assert "Chains" not in await page.text("#tabs")
        assert json.loads(await page.evaluate("JSON.stringify(shown.hasChains)")) is False
