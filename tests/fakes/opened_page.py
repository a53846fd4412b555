"""The page of runs, served and open in a Chromium while a test uses it."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from fakes.chromium import Page, chromium
from fakes.page_server import served


@asynccontextmanager
async def opened(folder: Path, profile: Path, address: str = "#/", **window: int) -> AsyncIterator[Page]:
    """The page of the runs in `folder`; fails when its scripts complain."""
    async with served(folder) as url, chromium(profile, **window) as page:
        await page.open(url + address)
        yield page
        assert page.complaints == []


async def go(page: Page, address: str, ready: str = "main > *") -> None:
    """To a place within the page; `ready` is a selector that its view has."""
    await page.evaluate(f"location.hash = {address!r}")
    await page.wait_for(f"document.querySelector({ready!r}) !== null")


async def assert_fits(
    page: Page, addresses: Iterable[str], *, width: int, elements: Iterable[str] = ("html",)
) -> None:
    """That these elements are no wider than the window at any of these places."""
    for address in addresses:
        await go(page, address)
        for element in elements:
            found = await page.evaluate(f"document.querySelector({element!r}).scrollWidth")
            assert found <= width, (address, element)
