"""The books of the finished run of fakes/finished_run.py."""

import pytest
from fakes.finished_run import GENERATED


@pytest.fixture
def generated() -> dict[str, int]:
    return dict(GENERATED)
