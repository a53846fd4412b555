"""The frame of the page in a real Chromium: any address is survived, numbers are those of the terminal."""

from pathlib import Path

import pytest
from fakes.chromium import needs_chromium
from fakes.opened_page import opened
from fakes.statuses import make_status

from asyncrl.observe.metrics.mishaps import POST_MORTEM
from asyncrl.run.status import write_status
from asyncrl.system.words import as_percent, fixed

pytestmark = needs_chromium

ADDRESSES = (
    *(
        "#/%ff",
        "#/%",
        "#/%zz/curves",
        "#/run/%ff",
        "#/run/groups/%e0%a4%a",
        "#/run/curves?%ff=%",
        "#/compare?%",
    ),
    *("#/run/groups/abc", "#/run/groups/-1", "#/run/groups/1e999", "#/run/groups?step=x&state=%ff"),
    *("#/constructor", "#/run/constructor", "#/run/__proto__", "#/toString/valueOf", "#/none/curves"),
    *(
        "#/run/log/more/and/more",
        "#//",
        "#///run",
        "#?",
        "#?a=b",
        "#/?",
        "#x",
        "#/compare/x",
        "#/compare?runs=,,",
    ),
    *(
        "#/compare?runs=run,none",
        "#/compare?price=%f0%28&runs=run",
        "#/run/answers/%00",
        "#/\\run",
        "#/<b>run",
    ),
)
SAYS_SOMETHING = (
    "!document.querySelector('#problem').hidden || document.querySelector('#root').innerText.trim() !== ''"
)


async def test_any_address_shows_a_view_or_a_sentence_and_the_page_lives_on(
    run_folder: Path, browser_address: str
) -> None:
    async with opened(run_folder, browser_address) as page:
        for address in ADDRESSES:
            await page.evaluate(f"location.hash = {address!r}; 0")
            await page.wait_for(SAYS_SOMETHING)
            assert page.complaints == [], address
            problem = await page.evaluate("document.querySelector('#problem').textContent")
            assert "is not a function" not in problem and "undefined" not in problem, f"{address}: {problem}"
            await page.evaluate("location.hash = '#/'; 0")
            await page.wait_for(
                "document.querySelector('#runs tr') && document.querySelector('#problem').hidden"
            )


@pytest.mark.parametrize("address", ["#/%ff", "#/run/constructor"])
async def test_a_page_that_opens_on_a_broken_address_says_so_and_leads_back(
    run_folder: Path, browser_address: str, address: str
) -> None:
    async with opened(run_folder, browser_address, address) as page:
        assert await page.wait_for("document.querySelector('#problem').textContent")
        await page.click("#home")
        await page.wait_for("document.querySelector('#runs tr')")


async def test_shares_are_rounded_as_on_the_terminal(run_folder: Path, browser_address: str) -> None:
    shares = [(k, n) for n in range(1, 65) for k in range(-n, n + 1)]
    async with opened(run_folder, browser_address) as page:
        for digits in (0, 1, 2):
            shown = await page.evaluate(
                f"{[list(pair) for pair in shares]}.map(([k, n]) => percent(k / n, {digits}))"
            )
            assert shown == [as_percent(k / n, digits) for k, n in shares]
        numbers = [0.125, 2.5, -2.5, 1.005, -0.004, 1234567.5]
        shown = await page.evaluate(f"{numbers}.map((value) => fixed(value, 2))")
        assert shown == [fixed(value, 2) for value in numbers]


async def test_the_cause_of_a_failed_run_is_in_the_overview_and_in_each_of_its_views(
    run_folder: Path, browser_address: str
) -> None:
    write_status(run_folder, make_status(state="failed", servers=[]))
    died = "InputError: The run cannot start: server 0 ended"
    (run_folder / POST_MORTEM).write_text(f"What ended the run\n---\n{died}\nits last line\n\nServers\n---\n")
    async with opened(run_folder, browser_address) as page:
        await page.wait_for(f"document.querySelector('#runs .problem')?.innerText == {died!r}")
        for view in ("curves", "groups", "answers", "ledger", "servers", "faults", "log"):
            await page.evaluate(f"location.hash = '#/run/{view}'; 0")
            await page.wait_for(f"document.querySelector('#head').innerText.includes({died!r})")
        await page.evaluate("location.hash = '#/run/servers'; 0")
        await page.wait_for("document.querySelector('main pre')?.innerText.includes('its last line')")
