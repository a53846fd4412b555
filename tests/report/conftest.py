"""The finished run of fakes/finished_run.py."""

from pathlib import Path

import pytest
from fakes.finished_run import write_run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path)
