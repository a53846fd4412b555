"""An exported page of several runs and a chain, from a disk: each tab says what the live page says."""

import re
import shutil
import time
from pathlib import Path

from fakes.browsed_run import write_browsed_run
from fakes.chained_runs import write_chain
from fakes.chromium import Page, needs_chromium, tab
from fakes.compared_runs import write_run
from fakes.evaluated_run import evaluate_run
from fakes.finished_run import edit_journal
from fakes.opened_page import go, served
from fakes.statuses import make_status

from asyncrl.commands import main as cli
from asyncrl.readers.page.app import export
from asyncrl.readers.page.runs import Run, Runs
from asyncrl.run.status import write_status

pytestmark = needs_chromium
SHOWN = {
    "": "#runs tr",
    "compare?runs=rl,sft,sums": "#results tr",
    "chains": "#stories article",
    "sft/curves": "canvas",
    "sums/curves": "canvas",
    "sums/groups": "#groups tr",
    "sums/groups/3": "#group article",
    "sums/answers": "#tasks article",
    "sums/evaluations": "main canvas",
    "sums/ledger": "#ledger-rows tr",
    "sums/servers": "main p",
    "sums/faults": "#causes article",
    "sums/log": "#log-rows tr",
}
"""Address -> what its view shows at last."""
SAID = """
[document.querySelector('#tabs').innerText, document.querySelector('main').innerText,
 ...[...document.querySelectorAll('canvas')].map((canvas) => canvas.getAttribute('aria-label'))].join('\\n')
"""
HITS = "[...document.querySelectorAll('#groups tr')].map((row) => [row.dataset.group, row.dataset.row])"


async def said(page: Page, address: str) -> str:
    """The text of a view once it has come to rest: without the time since a run's last row."""
    await go(page, f"#/{address}", SHOWN[address])
    last = ""
    while last != (last := str(await page.evaluate(SAID))):
        await page.evaluate("new Promise((done) => setTimeout(done, 150))")
    return re.sub(r"\d+ \w+ ago", "AGO", last)


async def test_each_tab_of_an_exported_page_says_what_the_live_page_says(
    tmp_path: Path, browser_address: str
) -> None:
    chain = write_chain(tmp_path / "stages")
    # Its state no longer changes while the test runs.
    silent = make_status(state="training", step=2, total_steps=4, time_seconds=time.time() - 600)
    write_status(tmp_path / "stages" / "rl", silent)
    run = write_browsed_run(tmp_path / "browsed")
    evaluate_run(run)
    runs = Runs([chain, run])
    file = tmp_path / "all.html"
    file.write_text(export(runs.all(), runs.chains(), num_groups=100))
    async with served(chain, run) as url, tab(browser_address) as live, tab(browser_address) as frozen:
        await live.open(url)
        await frozen.open(file.as_uri())
        for address in SHOWN:
            assert await said(frozen, address) == await said(live, address), address
        assert live.complaints == frozen.complaints == []


async def test_a_search_and_a_link_find_in_an_exported_page_what_they_find_in_the_live_one(
    tmp_path: Path, browser_address: str
) -> None:
    run = write_browsed_run(tmp_path / "browsed")
    edit_journal(run, "INSERT INTO repetitions (group_id, taken_version) VALUES (3, 4)")
    file = tmp_path / "run.html"
    file.write_text(export([Run("sums", run)], num_groups=100))
    found = []
    async with served(run) as url, tab(browser_address) as live, tab(browser_address) as frozen:
        for page, address in ((live, url), (frozen, file.as_uri())):
            await page.open(f"{address}#/sums/groups")
            await page.click("input[name=text]")
            # In a prompt, in responses, and as an answer.
            await page.type("43")
            await page.press("Enter")
            await page.wait_for("document.querySelector('#empty')?.innerText.includes('groups are searched')")
            found.append(await page.evaluate(HITS))
            await page.evaluate("location.hash = '#/sums/groups?repeated=5'")
            await page.wait_for("document.querySelectorAll('#groups tr').length == 1")
            assert await page.evaluate("document.querySelector('#groups tr').dataset.group") == "3"
        assert frozen.complaints == []
    assert found[1] == found[0]
    assert len(found[0]) > 10 and "prompt" in {where for _, where in found[0]}


async def test_any_two_runs_of_an_exported_folder_are_compared_and_what_is_not_there_is_said(
    tmp_path: Path, browser_address: str
) -> None:
    folder = tmp_path / "runs"
    write_browsed_run(folder)
    for name, scores in (("a", [0.0, 1.0]), ("b", [1.0, 1.0]), ("c", [1.0, 0.0])):
        write_run(folder / name, {0: [0.0, 0.0], 4: scores}, recipe={"algorithm": {"note": name}})
    shutil.copytree(folder / "a", folder / "damaged")
    (folder / "damaged" / "metrics.jsonl").write_text("no row\n")
    file = tmp_path / "runs.html"
    assert cli.main(["view", str(folder), "--export", str(file), "--groups", "3"]) == 0
    async with tab(browser_address) as page:
        await page.open(f"{file.as_uri()}#/compare")
        runs = "[...document.querySelectorAll('#results thead th')].slice(1).map((e) => e.innerText).join()"
        await page.wait_for(f"{runs} == 'a,b,c,sums'")
        assert "It holds the comparison of 4 runs" in await page.text("#exported")
        for name in ("a", "sums"):
            await page.click(f"#chosen-runs input[name={name}]")
        await page.wait_for(f"{runs} == 'b,c'")
        await page.wait_for("document.querySelector('#kinds')?.innerText.includes('right in b alone 1')")
        await page.click("#chosen-runs input[name=sums]")
        await page.wait_for("document.querySelector('#compared').hidden")
        assert "compares two of its runs, or all of them" in await page.text("#too-few")
        assert await page.evaluate("document.querySelector('#chosen-runs input[name=damaged]').disabled")
        await go(page, "#/sums/groups", "#groups tr")
        assert "It holds the newest 3 groups" in await page.text("#exported")
        await page.evaluate("location.hash = '#/damaged/curves'")
        await page.wait_for("document.querySelector('#problem').innerText.includes('metrics.jsonl')")
        assert page.complaints == []
