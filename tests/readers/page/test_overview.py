"""Runs side by side and chains on the page: their answers, and in a real browser."""

import json
from pathlib import Path

import pytest
from aiohttp import ClientSession
from fakes.chained_runs import write_chain
from fakes.chromium import needs_chromium
from fakes.compared_runs import write_run
from fakes.opened_page import CUT, opened, served
from fakes.statuses import make_status

from asyncrl.readers.page.overview import MOST_HELD, hold_comparisons
from asyncrl.readers.page.runs import Runs
from asyncrl.run.status import write_status

RIGHT, WRONG = 1.0, 0.0
CISPO = {"algorithm": {"surrogate": "cispo", "rejection": []}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """ppo and cispo: of 40 tasks cispo alone answers 25 right, ppo alone 1. young was not evaluated yet."""
    runs = tmp_path / "runs"
    ppo = [RIGHT] * 5 + [WRONG] * 35
    cispo = [WRONG] + [RIGHT] * 29 + [WRONG] * 10
    write_run(runs / "ppo", {0: ppo, 4: ppo})
    write_run(runs / "cispo", {0: ppo, 4: cispo}, recipe=CISPO)
    write_run(runs / "young", {}, recipe={"trainer": {"num_steps": 9}}, num_steps=1)
    return runs


async def test_the_server_compares_the_runs_that_a_page_names(folder: Path) -> None:
    async with served(folder) as url, ClientSession() as session:
        asked = {"runs": "ppo,cispo"}
        async with session.get(f"{url}api/compare", params=asked) as reply:
            answer = await reply.json()
        (pair,) = answer["comparison"]["pairs"]
        assert pair["contests"][0]["text"].startswith("cispo beats ppo by 60.0 points")
        assert answer["comparison"]["runs"][0]["seconds"] == 144.0
        # What the page has already is neither computed nor sent again.
        known = {**asked, "after": answer["revision"]}
        async with session.get(f"{url}api/compare", params=known) as reply:
            assert await reply.json() == {"revision": answer["revision"], "comparison": None}
        with (folder / "ppo" / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "event", "time_seconds": 0, "event": "ready"}\n')
        async with session.get(f"{url}api/compare", params=known) as reply:
            assert (await reply.json())["comparison"] is not None


async def test_tasks_that_were_answered_differently_have_both_answers(folder: Path) -> None:
    async with served(folder) as url, ClientSession() as session:
        asked = {"runs": "ppo,cispo", "kind": "first"}
        async with session.get(f"{url}api/compare/answers", params=asked) as reply:
            answer = await reply.json()
        assert answer["counts"] == {"second": 25, "first": 1, "neither": 0}
        (task,) = answer["tasks"]
        assert (task["task_id"], task["prompt"]) == ("heldout:1", "1+1=")
        assert (task["first"]["text"], task["second"]["text"]) == ("it is 2", "it is 7")
        assert (task["first"]["extracted"], task["second"]["outcome"]) == ("2", "wrong")
        asked = {"runs": "ppo,cispo", "kind": "second", "offset": "20"}
        async with session.get(f"{url}api/compare/answers", params=asked) as reply:
            assert len((await reply.json())["tasks"]) == 5


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("compare?runs=ppo", 400, "runs names 1 runs"),
        ("compare?runs=ppo,other", 404, "There is no run other."),
        ("compare/answers?runs=ppo,cispo,young", 400, "expected two"),
        ("compare/answers?runs=ppo,cispo&kind=all", 400, "kind is none of second, first, neither"),
        ("compare/answers?runs=ppo,cispo&offset=x", 400, "offset is 'x'"),
    ],
)
async def test_a_bad_question_gets_a_sentence(folder: Path, query: str, status: int, sentence: str) -> None:
    async with served(folder) as url, ClientSession() as session:
        async with session.get(f"{url}api/{query}") as reply:
            assert reply.status == status
            assert sentence in await reply.text()


@needs_chromium
async def test_runs_are_chosen_and_compared_in_a_browser(folder: Path, browser_address: str) -> None:
    async with opened(folder, browser_address, "#/compare") as page:
        assert "Choose two runs or more" in await page.text("#too-few")
        await page.click("input[name=ppo]")
        await page.wait_for("document.querySelector('#reference').innerText.includes('compared with ppo')")
        await page.click("input[name=cispo]")
        await page.wait_for("document.querySelectorAll('#verdicts li').length == 1")
        assert "cispo beats ppo by 60.0 points" in await page.text("#verdicts")
        assert "algorithm.surrogate\tppo_clip\tcispo" in await page.text("#keys")
        assert "training time" in await page.text("#results")
        await page.wait_for("document.querySelectorAll('#compare-curves canvas').length == 1")
        await page.click("button[data-axis=tokens]")
        await page.wait_for(
            "document.querySelector('#compare-curves').innerText.includes('over tokens generated')"
        )
        await page.click("button[data-kind=first]")
        await page.wait_for("document.querySelectorAll('#differing article').length == 1")
        card = await page.text("#differing article")
        assert "1+1=" in card and "it is 2" in card and "it is 7" in card
        await page.click("button[data-kind=second]")
        await page.wait_for("document.querySelectorAll('#differing article').length == 20")
        await page.click("#more")
        await page.wait_for("document.querySelectorAll('#differing article').length == 25")
        await page.resize(420, 800)
        assert await page.evaluate("document.querySelector('main').scrollWidth <= 420")


def test_of_many_runs_an_exported_page_compares_the_first_that_can_be_read(tmp_path: Path) -> None:
    folders = {f"run{number}": tmp_path / f"run{number}" for number in range(MOST_HELD + 2)}
    for folder in folders.values():
        folder.mkdir()
        (folder / "recipe.yaml").write_text("name: sums\n")
    (folders["run1"] / "metrics.jsonl").write_text("no row\n")
    found = hold_comparisons(folders)
    assert found["/api/compare"] == [f"run{number}" for number in (0, *range(2, MOST_HELD + 1))]
    assert found["/api/compare/held"].startswith("the comparison of 8 runs")
    assert "/api/compare?runs=run8,run0&after=" in found
    assert not any("run9" in path or "run1" in path for path in found)


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
