"""Verifiers of a test module's own."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Holds `OWN` of the module as own.py."""
    (tmp_path / "own.py").write_text(request.module.OWN)
    return tmp_path
