"""The finished run of fakes/finished_run.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.chromium import browser
from fakes.finished_run import GENERATED, write_run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path)


@pytest.fixture(scope="module")
def browser_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the Chromium that the tests of a file share; each has a tab of its own (`chromium.tab`)."""
    with browser(tmp_path_factory.mktemp("browser")) as address:
        yield address


@pytest.fixture
def generated() -> dict[str, int]:
    return dict(GENERATED)
