"""The browser of the tests of a file."""

from collections.abc import Iterator

import pytest
from fakes.chromium import browser


@pytest.fixture(scope="module")
def browser_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the Chromium that the tests of a file share; each has a tab of its own (`chromium.tab`)."""
    with browser(tmp_path_factory.mktemp("browser")) as address:
        yield address
