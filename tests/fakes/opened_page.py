"""The page of runs, served and open in a tab while a test uses it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fakes.chromium import Page, tab

from asyncrl.readers.page.app import serve
from asyncrl.readers.page.runs import Runs

CUT = """
[...document.querySelectorAll("body *")].filter((element) => {
  const style = getComputedStyle(element);
  if (element.closest("canvas, svg, dialog, #tip") || element.getClientRects().length === 0) return false;
  const hides = ["hidden", "clip"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1;
  const box = element.getBoundingClientRect();
  const isScrolled = (outer) => ["auto", "scroll"].includes(getComputedStyle(outer).overflowX);
  const scrolls = (outer) => outer !== null && (isScrolled(outer) || scrolls(outer.parentElement));
  const leaves = box.width > 0 && box.right > innerWidth + 1 && !scrolls(element.parentElement);
  return hides || leaves;
}).map((element) => `${element.tagName}#${element.id}.${element.className}: ${element.textContent}`)
"""
"""Elements wider than their container, or than the window, without a way to scroll there."""


LIMIT_SECONDS = 60


@asynccontextmanager
async def served(*folders: Path) -> AsyncIterator[str]:
    """The URL, which ends with a slash."""
    until = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(Runs(folders), port=0, until=until, ready=url.set_result))
    try:
        yield await asyncio.wait_for(url, LIMIT_SECONDS)
    finally:
        until.set()
        await server


@asynccontextmanager
async def opened(folder: Path, browser: str, address: str = "#/", **window: int) -> AsyncIterator[Page]:
    """The page of the runs in `folder`, in a tab of `browser`. Fails when its scripts complain."""
    async with served(folder) as url, tab(browser, **window) as page:
        await page.open(url + address)
        yield page
        assert page.complaints == []


async def go(page: Page, address: str, ready: str) -> None:
    """To a place within the page; `ready` is a selector that its view has."""
    await page.evaluate(f"location.hash = {address!r}")
    await page.wait_for(f"document.querySelector({ready!r}) !== null")
