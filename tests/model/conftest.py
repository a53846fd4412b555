"""A model's folder, each test's own."""

import shutil
from pathlib import Path

import pytest
from fakes.models import write_model


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "model")
