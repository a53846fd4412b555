"""The finished run of fakes/finished_run.py."""

from pathlib import Path

import pytest
from fakes.finished_run import write_run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path)


@pytest.fixture
def generated() -> dict[str, int]:
    """Tokens as the queue counts them: 3 + 4 trained, 2 dropped, 1 queued."""
    return {"generated": 10, "trained": 7, "taken": 0, "queued": 1, "dropped: stale": 2}
