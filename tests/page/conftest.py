"""The finished run of fakes/finished_run.py."""

from pathlib import Path

import pytest
from fakes.finished_run import GENERATED, write_run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path)


@pytest.fixture
def generated() -> dict[str, int]:
    return dict(GENERATED)
