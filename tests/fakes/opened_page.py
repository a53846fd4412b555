"""The page of runs, served and open in a tab while a test uses it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fakes.chromium import Page, tab
from fakes.page_server import served


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
