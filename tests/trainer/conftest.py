"""One gloo process group of one rank for all tests in this process."""

from collections.abc import Iterator

import pytest

from asyncrl.trainer import ranks


@pytest.fixture(scope="session", autouse=True)
def process_group() -> Iterator[None]:
    ranks.start(threads=1, seed=0)
    yield
    ranks.stop()
