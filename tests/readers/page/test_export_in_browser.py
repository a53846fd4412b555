"""An exported page of several runs and a chain, from a disk: each tab says what the live page says."""

import re
import time
from pathlib import Path

from fakes.browsed_run import write_browsed_run
from fakes.chained_runs import write_chain
from fakes.chromium import Page, needs_chromium, tab
from fakes.evaluated_run import evaluate_run
from fakes.opened_page import go
from fakes.page_server import served
from fakes.statuses import make_status

from asyncrl.readers.page.app import export
from asyncrl.readers.page.runs import Runs
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
